"""Checkpoints on storage and in memory: formats, verification, retention, when to save. Standard library only."""
