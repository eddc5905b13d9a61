"""Large files, quickly: JSON as bytes, and writers that the garbage collector leaves alone."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Callable
from typing import ParamSpec

import msgspec

_P = ParamSpec("_P")


def uncollected(write: Callable[_P, bytes]) -> Callable[_P, bytes]:
    """The writer without garbage collection while it works.

    It makes millions of lists and tuples and no cycles, and each full collection would walk all of them.
    """

    @functools.wraps(write)
    def quietly(*args: _P.args, **kwargs: _P.kwargs) -> bytes:
        if not gc.isenabled():
            return write(*args, **kwargs)
        gc.disable()
        try:
            return write(*args, **kwargs)
        finally:
            gc.enable()

    return quietly


def json_bytes(value: object) -> bytes:
    """``value`` as JSON without spaces. Half surrogates, which UTF-8 cannot hold, are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
