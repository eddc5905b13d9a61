"""Lines from chunks of output, with a rank in front of each."""

from __future__ import annotations

from typing import Final

LINE_BYTES: Final = 1 << 20  # a longer line is given in pieces


class RankLines:
    """The lines of one rank's output; ``prefix`` precedes each.

    With ``bars``, text that a carriage return has overwritten is dropped, so that a progress bar is one line.
    """

    def __init__(self, prefix: bytes = b"", *, bars: bool = False) -> None:
        self.prefix = prefix
        self._bars = bars
        self._open = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Lines that ``data`` completes, without their ends."""
        *whole, self._open = (self._open + data).split(b"\n")
        if self._bars:
            self._open = self._open[max(self._open.rstrip(b"\r").rfind(b"\r"), 0) :]
        if len(self._open) > LINE_BYTES:
            whole.append(self._open)
            self._open = b""
        return [self.prefix + line for line in whole] if self.prefix else whole

    def rest(self) -> list[bytes]:
        """The last line, if it has no line end."""
        rest, self._open = self._open, b""
        return [self.prefix + rest] if rest else []

    def open_line(self) -> bytes:
        """The unfinished line after its last carriage return; may be empty."""
        line = self._open.rstrip(b"\r").rpartition(b"\r")[2]
        return self.prefix + line if line else b""
