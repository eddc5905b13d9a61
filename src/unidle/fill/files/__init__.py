"""The fill file: a span file with prompts and a model for inference."""
