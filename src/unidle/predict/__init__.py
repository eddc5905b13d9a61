"""What will probably be: speed, cost, run time and start of jobs, each with an interval. Pure."""
