"""Continuous mode: a separate process profiles running ranks in short windows, and keeps the results."""
