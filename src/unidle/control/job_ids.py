"""Names of jobs that are easy to read, to type and to distinguish."""

from __future__ import annotations

import secrets

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # no characters that look alike


def new_job_id(name: str) -> str:
    """``name`` and six characters by chance: clients may name jobs without asking the writer."""
    return f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"
