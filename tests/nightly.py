"""What runs in full only at night: `make test-nightly`, before a release and after a change of the room.

CI runs a fixed part of each long sweep, with at least one of each kind, and half of the generated examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

IN_FULL = bool(os.environ.get("UNIDLE_NIGHTLY"))
_LEAST_EXAMPLES = 10
T = TypeVar("T")


def rounds(in_full: int, else_: int) -> int:
    """How many rounds a sweep inside of one test has."""
    return in_full if IN_FULL else else_


def every(number: int, values: Iterable[T], *, first: int) -> list[T]:
    """All values at night, else each ``number``-th from ``first`` on: callers with other ``first`` share them out."""
    found = list(values)
    return found if IN_FULL else found[first % number :: number]


def sweep(values: Iterable[Any], *, always: Iterable[Any]) -> list[Any]:
    """The parameters of a test; those that are not in ``always`` are marked ``nightly``."""
    kept = list(always)
    return [value if value in kept else pytest.param(value, marks=pytest.mark.nightly) for value in values]


def examples(default: int = 100) -> int:
    """How many examples a property test has."""
    return default if IN_FULL else max(default // 2, min(default, _LEAST_EXAMPLES))


def share_examples(items: Iterable[Any]) -> None:
    """Halve the examples of property tests that state their own number, unless all of them are to run."""
    seen: set[int] = set()
    for item in () if IN_FULL else items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is None or id(test) in seen:
            continue
        seen.add(id(test))
        test._hypothesis_internal_use_settings = settings(own, max_examples=examples(own.max_examples))
