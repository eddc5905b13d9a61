"""Finds code that makes training slower than it has to be."""
