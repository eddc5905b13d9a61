"""What a running, unmodified process really does: stacks, waits, calls and a budget of its time."""
