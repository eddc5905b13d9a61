"""Lines as a terminal may have them."""

from __future__ import annotations

import re
from typing import Final

# Of escapes colours alone stay: others would move the cursor, or change the terminal.
_KEPT: Final = r"\x1b\[[0-9;:]*m"
_ESCAPES: Final = re.compile(
    rf"(?P<kept>{_KEPT})|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|\x08"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;:]*m)")


def for_terminal(line: bytes) -> str:
    """A line as a terminal may have it: what its last carriage return left, with colours, without other controls."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    if text.isprintable():
        return text
    clean = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub(_kept, text))
    return clean + "\x1b[0m" if "\x1b" in clean else clean


def _kept(found: re.Match[str]) -> str:
    return found["kept"] or ""
