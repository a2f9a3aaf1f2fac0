"""Vocabulary, errors, tables, fingerprints: what every room may use. Standard library only."""
