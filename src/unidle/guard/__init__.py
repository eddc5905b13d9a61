"""What to do about failures: pure policies."""
