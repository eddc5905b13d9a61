"""What rules read of a file: names, roles, loops and calls. Built once for each file."""
