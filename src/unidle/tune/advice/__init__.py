"""Advice without edits: each answer with its arithmetic. Pure; nothing here was measured on the machine in question."""
