"""The view: what the log says, folded into one value."""
