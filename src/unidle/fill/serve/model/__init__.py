"""Language models as directories of Hugging Face have them: configuration, weights, layers."""
