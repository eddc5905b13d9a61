"""Queues: what each may use, whose turn it is, who may be stopped, and when the others start."""
