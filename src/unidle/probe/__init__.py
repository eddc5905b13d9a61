"""Senses: what a node says about its own health, read from the machine."""
