"""Where in the user's own code a stack stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unidle.scope.model import Frame
from unidle.scope.rules import is_user_file, leaf_of


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A line of code, or the name of a native function where there is no Python."""

    function: str
    file: str = ""
    line: int = 0

    @property
    def text(self) -> str:
        """``work (train.py:41)``: file names without their directory."""
        name = _short(self.function)
        return f"{name} ({self.file.rpartition('/')[2]}:{self.line})" if self.file else name

    @property
    def where(self) -> str:
        """``train.py:41``, or the function."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else self.function


def place_of(stack: Iterable[Frame]) -> CodePlace | None:
    """The deepest line of the user's own code; else the deepest Python line; else the deepest native function."""
    frames = tuple(stack)
    python = [frame for frame in frames if frame.kind == "python"]
    own = next((frame for frame in reversed(python) if is_user_file(frame.file)), None)
    if own is None and python:
        own = next((f for f in reversed(python) if not f.file.startswith("<")), python[-1])
    if own is not None:
        return CodePlace(own.function, own.file, own.line)
    at = leaf_of(frames)
    return None if at is None else CodePlace(frames[at].function)


def _short(function: str, limit: int = 60) -> str:
    return function if len(function) <= limit else function[: limit - 1] + "…"
