"""Deterministic edits of findings: what an edit does to a tree of code, and how it is written into the text."""
