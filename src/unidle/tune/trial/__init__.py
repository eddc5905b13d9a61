"""Trials of a change: the program runs as a contained child in a copy of the tree, is compared, and is measured."""
