"""Engines: what carries decisions out and reports what happened."""
