"""Bytes into lines with bounded memory: a line of a megabyte keeps its beginning, NUL bytes of a torn file are dropped."""

from __future__ import annotations

from typing import Final

from unidle.guard.log.model import LogLine

LINE_BYTES: Final = 16 * 1024
"""What is kept of a line; the kernel's own lines are at most about 1 KiB, a journal's JSON a few."""


class Splitter:
    """Cuts a stream of blocks into lines. ``number`` is how many lines have ended so far.

    With ``needles`` only lines that hold one of them come out; the others are counted. That looks for each needle in the
    whole block at once, which is ten times as quick as to ask line by line.
    """

    def __init__(self, number: int = 0, needles: tuple[bytes, ...] = ()) -> None:
        self.number = number
        self._needles = needles
        self._open = b""
        self._open_bytes = 0

    @property
    def open_bytes(self) -> int:
        """Bytes of the line that has not ended yet, those that are not kept included."""
        return self._open_bytes

    def feed(self, block: bytes) -> list[LogLine]:
        """The lines that end in this block."""
        start = 0
        lines = []
        if self._open_bytes:
            end = block.find(b"\n")
            if end < 0:
                self._keep(block)
                return []
            self._keep(block[:end])
            lines, start = self.end(), end + 1
        last = block.rfind(b"\n") + 1
        if last > start:
            whole = block[start:last] if start or last < len(block) else block
            lines += self._chosen(whole) if self._needles else self._all(whole)
        self._keep(block[max(last, start) :])
        return lines

    def _all(self, block: bytes) -> list[LogLine]:
        first = self.number + 1
        parts = block[:-1].split(b"\n")
        self.number += len(parts)
        return [LogLine(number, clean(part)) for number, part in enumerate(parts, first)]

    def _chosen(self, block: bytes) -> list[LogLine]:
        """The lines of a block of whole lines that hold a needle."""
        ends = set()
        for needle in self._needles:
            at = block.find(needle)
            while at >= 0:
                end = block.find(b"\n", at)
                ends.add(end)
                at = block.find(needle, end + 1)
        lines, counted, number = [], 0, self.number
        for end in sorted(ends):
            start = block.rfind(b"\n", counted, end) + 1 or counted
            number += block.count(b"\n", counted, start) + 1
            counted = end + 1
            if end - start <= LINE_BYTES or self._is_sought(block[start : start + LINE_BYTES]):
                lines.append(LogLine(number, clean(block[start:end])))
        self.number = number + block.count(b"\n", counted)
        return lines

    def _keep(self, part: bytes) -> None:
        if part:
            self._open += part[: LINE_BYTES - len(self._open)]
            self._open_bytes += len(part)

    def end(self) -> list[LogLine]:
        """The last line where it has no line end."""
        if not self._open_bytes:
            return []
        self.number += 1
        kept = self._open
        self.forget()
        return [LogLine(self.number, clean(kept))] if self._is_sought(kept) else []

    def _is_sought(self, kept: bytes) -> bool:
        return not self._needles or any(needle in kept for needle in self._needles)

    def forget(self) -> None:
        """Drop the line that has not ended: what it belonged to is gone."""
        self._open, self._open_bytes = b"", 0


def clean(part: bytes) -> bytes:
    """The kept bytes of a line, without NUL and carriage return."""
    part = part[:LINE_BYTES]
    if b"\0" in part:
        part = part.replace(b"\0", b"")
    return part[:-1] if part.endswith(b"\r") else part
