"""Checks and remedies as processes of this machine, which outlive who began them."""
