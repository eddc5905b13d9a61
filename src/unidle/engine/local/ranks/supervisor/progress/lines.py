"""Cuts a rank's output into lines, whatever the chunks are."""

from __future__ import annotations

LINE_BYTES = 64 * 1024


class LineCutter:
    r"""One stream. ``\n`` and ``\r`` end a line; what follows the first 64 KiB of a line is skipped."""

    __slots__ = ("_skipping", "tail")

    def __init__(self) -> None:
        self.tail = b""  # the line that is still being written
        self._skipping = False

    def feed(self, data: bytes) -> bytes:
        r"""The whole lines that ``data`` completes, as one block in which ``\n`` ends a line."""
        if b"\r" in data:
            data = data.replace(b"\r", b"\n")
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                return b""
            data = data[end + 1 :]
            self._skipping = False
        end = data.rfind(b"\n") + 1
        block = self.tail + data[:end] if end else b""
        self.tail = data[end:] if end else self.tail + data
        if len(self.tail) > LINE_BYTES:
            block += self.tail[:LINE_BYTES] + b"\n"
            self.tail = b""
            self._skipping = True
        return block

    def rest(self) -> bytes:
        """What was written of a last line that never ended."""
        rest, self.tail = self.tail, b""
        return rest
