"""What strings do themselves from Python 3.9 on: hosts may have 3.8."""

from __future__ import annotations


def without_prefix(text: str, prefix: str) -> str:
    """``text`` without ``prefix``, where it begins with that."""
    return text[len(prefix) :] if text.startswith(prefix) else text


def without_suffix(text: str, suffix: str) -> str:
    """``text`` without ``suffix``, where it ends with that."""
    return text[: -len(suffix)] if suffix and text.endswith(suffix) else text
