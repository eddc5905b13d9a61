"""The loop: events to view, view to decisions, decisions to the engine."""
