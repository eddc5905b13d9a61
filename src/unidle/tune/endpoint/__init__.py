"""A model behind an OpenAI-compatible endpoint that proposes edits. Nothing here is imported unless one is configured."""
