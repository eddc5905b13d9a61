"""Reads the health of a node from its machine."""
