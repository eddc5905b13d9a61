"""Questions about a view, answered in plain values. Nothing here changes anything."""
