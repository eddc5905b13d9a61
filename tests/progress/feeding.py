"""Feeds recorded output to a scanner the way a pipe would."""

from __future__ import annotations

import random
from typing import Any

from unidle.engine.local.ranks.supervisor.progress import Scanner

Mark = dict[str, Any]
SECOND = 1_000_000_000


def marks_of(text: str | bytes, pattern: str | None = None) -> list[Mark]:
    """Marks of output that arrives line by line, one second apart; the first line at 1 s."""
    data = text.encode() if isinstance(text, str) else text
    scanner = Scanner(pattern)
    marks: list[Mark] = []
    t_ns = 0
    for line in data.replace(b"\r", b"\n\r").splitlines(keepends=True):
        t_ns += SECOND
        marks += scanner.feed("stdout", line, t_ns)
    return marks + scanner.flush(t_ns + SECOND)


def cut(data: bytes, seed: int, most: int = 200) -> list[bytes]:
    """The data in chunks of random sizes."""
    dice = random.Random(seed)
    chunks = []
    while data:
        size = dice.randint(1, most)
        chunks.append(data[:size])
        data = data[size:]
    return chunks


def steps(marks: list[Mark]) -> list[int]:
    return [mark["n"] for mark in marks if mark["k"] == "step"]


def sources(marks: list[Mark]) -> set[str]:
    return {mark["o"] for mark in marks if mark["k"] == "step"}


def spans(marks: list[Mark]) -> list[tuple[str, float, float]]:
    return [(m["w"], m["t"] / SECOND, m["e"] / SECOND) for m in marks if m["k"] == "span"]
