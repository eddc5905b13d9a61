"""Lines from chunks of output, with a rank in front of each, and as a terminal may have them."""

from __future__ import annotations

import re
from typing import Final

LINE_BYTES: Final = 1 << 20  # a longer line is shown in pieces
# Of escapes colours alone stay: others would move the cursor, or change the terminal.
_KEPT: Final = r"\x1b\[[0-9;:]*m"
_ESCAPES: Final = re.compile(
    rf"(?P<kept>{_KEPT})|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|\x08"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;:]*m)")


class Lines:
    """The lines of one rank's output; ``prefix`` stands before each.

    With ``bars`` what a carriage return has overwritten is forgotten: a progress bar is one line for hours.
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
        """The last line, where it has no end."""
        rest, self._open = self._open, b""
        return [self.prefix + rest] if rest else []

    def open_line(self) -> bytes:
        """The line that is not finished: what its last carriage return left; empty where there is none."""
        line = self._open.rstrip(b"\r").rpartition(b"\r")[2]
        return self.prefix + line if line else b""


def for_terminal(line: bytes) -> str:
    """A line as a terminal may have it: what its last carriage return left, with colours, without other controls."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    if text.isprintable():
        return text
    clean = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub(_kept, text))
    return clean + "\x1b[0m" if "\x1b" in clean else clean


def _kept(found: re.Match[str]) -> str:
    return found["kept"] or ""
