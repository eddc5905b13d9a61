"""A model behind an OpenAI-compatible endpoint that proposes edits. Only its settings are read unless one is configured."""
