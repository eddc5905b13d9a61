"""A box: the process that holds the ranks of one job on one node, and dials the controller's hub. Standard library only."""
