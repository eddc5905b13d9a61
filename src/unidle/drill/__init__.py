"""Game days: a fleet on one machine, and faults that are put into it on purpose."""
