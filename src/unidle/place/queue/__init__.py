"""Queues: whose turn it is, what each may hold, who gives way, and when the others start."""
