"""The view: the state that the log describes, folded into one value."""
