"""Continuous mode: a process of its own looks at running ranks in short windows, and keeps what it found."""
