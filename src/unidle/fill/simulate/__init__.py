"""Training with jitter, and what the policy makes of its waits: modelled in whole nanoseconds. Pure."""
