"""Processes of a gang next to its ranks: holders of copies in memory, checksums of checkpoints."""
