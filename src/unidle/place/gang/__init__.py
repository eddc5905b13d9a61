"""The slices of one gang, new or restarted after a failure."""
