"""Every reason why a job waits, or can never start."""
