"""JSON whose null fields count as absent, as they do for the API server."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def without_nulls(data: Any) -> Any:
    """``data`` without fields whose value is null."""
    if isinstance(data, dict):
        return {key: without_nulls(value) for key, value in data.items() if value is not None}
    return [without_nulls(item) for item in data] if isinstance(data, list) else data


def decoded(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """``body`` as ``kind``. Fields that are null are rare, and cost a second reading.

    Errors: ``msgspec.DecodeError``, of which ``ValidationError`` is one.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return msgspec.convert(without_nulls(msgspec.json.decode(body)), kind)
