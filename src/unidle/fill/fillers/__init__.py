"""Fillers that unidle has. Each is a :class:`unidle.fill.sliced.Sliced`, and is made by its class in the filler's process."""
