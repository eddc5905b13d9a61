"""Senses: what can be seen of a node from outside of the jobs that run on it."""
