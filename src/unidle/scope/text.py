"""Pieces of text that fit their columns."""

from __future__ import annotations

from typing import Final

_PARTS: Final = " ▏▎▍▌▋▊▉█"


def clip(text: str, width: int) -> str:
    """Text cut at its end."""
    text = text.rstrip()
    return text if len(text) <= width else text[: width - 1] + "…"


def middle(text: str, room: int) -> str:
    """Text cut in the middle, so that its file and line stay."""
    if len(text) <= room:
        return text
    back = room * 2 // 3
    return text[: room - back - 1] + "…" + text[-back:]


def bold(text: str, colour: bool) -> str:
    """Bold on a terminal that has colours."""
    return f"\x1b[1m{text}\x1b[0m" if colour else text


def bar(share: float, room: int) -> str:
    """A bar of ``room`` columns for a share of 1, in eighths of a column."""
    eighths = round(share * room * 8)
    return "█" * (eighths // 8) + (_PARTS[eighths % 8] if eighths % 8 else "")


def program(command: str) -> str:
    """The script of a Python command, else the command."""
    words = command.split()
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    if script:
        return script.rpartition("/")[2]
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else "?"
