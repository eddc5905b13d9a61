"""The loop on the simulated engine: recorded jobs and faults under other policies."""
