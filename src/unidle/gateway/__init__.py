"""Serves the commands of a cluster's users: who they are, what they may do, and what they read."""
