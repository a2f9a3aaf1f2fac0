"""Audit views for people: token dumps, an offline HTML page, diffs, explanations. Reads rows; trains nothing."""
