"""What a run does next, from what its ranks measured: other shares, another schedule, or fewer sites. Pure."""
