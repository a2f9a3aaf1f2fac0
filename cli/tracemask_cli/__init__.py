"""The command line of tracemask; owns every print."""
