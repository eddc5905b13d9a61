"""How lines of a journal become marks: here as the JSON objects that they are, in the engine as ``unidle.events.marks.Mark``."""

from __future__ import annotations

import json
import math

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

ENDS = ("exit", "lost")
LINE_BYTES = 256 * 1024  # of one mark: a few fit into a frame of the hub
_WHOLE, _TEXT = ("t", "n", "e", "code", "pid", "ticks"), ("k", "w", "o", "text")
_LAST = {"what": str, "where": str, "kind": str, "sort": str, "symptom": bool}
_MOST = 1 << 63
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class RawMarks:
    """Marks as JSON objects. What is none, or would not be taken for a mark elsewhere, is refused by :meth:`decode`."""

    def decode(self, line: bytes) -> Any:
        """The mark of one line. Errors: ValueError and RecursionError, for which the reader puts a ``note``."""
        if len(line) > LINE_BYTES:
            raise ValueError(f"it is longer than {LINE_BYTES} bytes")
        mark = json.loads(line, parse_constant=_refuse)
        problem = _problem(mark)
        if problem:
            raise ValueError(problem)
        return mark

    def encode(self, mark: Any) -> bytes:
        return _ENCODE(mark).encode("ascii")

    def make(self, kind: str, t_ns: int, text: str, info: dict[str, bool] | None = None) -> Any:
        """A mark of the watcher's own."""
        mark: dict[str, Any] = {"k": kind, "t": t_ns, "text": text}
        return mark if info is None else {**mark, "info": info}

    def facts(self, mark: Any) -> tuple[str, int, int | None, int | None]:
        """Kind, time, pid and start ticks of a mark."""
        return mark["k"], mark["t"], mark.get("pid"), mark.get("ticks")


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _problem(mark: object) -> str:
    """What keeps an object from being a mark; empty where nothing does."""
    if not isinstance(mark, dict):
        return "it is no JSON object"
    if "k" not in mark or "t" not in mark:
        return "it has no kind or no time"
    for name in _WHOLE:
        if not _is_whole(mark.get(name), missing=name != "t"):
            return f"its {name} is no whole number of 64 bits"
    for name in _TEXT:
        if not isinstance(mark.get(name), str) and (name == "k" or mark.get(name) is not None):
            return f"its {name} is no text"
    if not _is_plain(mark.get("v")) or isinstance(mark.get("v"), (str, bool)):
        return "its v is no number"
    info = mark.get("info")
    if info is not None and not (isinstance(info, dict) and all(map(_is_plain, info.values()))):
        return "its info holds more than plain values"
    return _problem_of_last(mark.get("last"))


def _problem_of_last(last: object) -> str:
    if last is None:
        return ""
    if not isinstance(last, dict):
        return "its last is no object"
    for name, kind in _LAST.items():
        if not isinstance(last.get(name, kind()), kind):
            return f"its last has no usable {name}"
    lines = last.get("lines", [])
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return "its last has no usable lines"
    return ""


def _is_whole(value: object, *, missing: bool) -> bool:
    if value is None:
        return missing
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value < _MOST


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -_MOST <= value < _MOST
    return value is None or isinstance(value, (str, bool))
