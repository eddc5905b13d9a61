"""Who runs where: pure placement policies."""
