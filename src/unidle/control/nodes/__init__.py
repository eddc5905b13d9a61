"""Sick nodes: detectors, remedies, checks before a gang starts, maintenance."""
