"""Tables that fit the terminal: 80 columns without a terminal. Nothing is cut off; what is too wide is wrapped."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

_GAP: Final = "  "
_NOTE_LEAST: Final = 16  # columns, for a last column of sentences that stays in its row
_SHORT: Final = 16  # columns of text that is not wrapped
_NOTE_LINES: Final = 2
_NOTE_INDENT: Final = "    "
_NARROWEST: Final = 40
_STATES: Final = {
    "running": "1;32", "succeeded": "32", "starting": "36", "queued": "33", "restarting": "33", "failed": "31",
    "cancelled": "2", "healthy": "32", "fault": "31", "sick": "31", "out": "31", "UNFIT": "31", "bad": "31", "good": "32",
    "drain": "33", "draining": "33", "quarantine": "33", "probation": "33", "repair": "33", "maintenance": "33",
}  # fmt: skip
_STATE_COLUMNS: Final = ("state", "health")
# A word with the blanks before it. A command in backticks is one word.
_WORD: Final = re.compile(r"\s*(?:`[^`]*`|\S)+")


def columns() -> int:
    """How wide a line may be."""
    return max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST)


def folded(text: str, width: int, hang: int = 2) -> list[str]:
    """One line of text as lines of at most ``width`` columns; those after the first are indented by ``hang``.

    Blanks inside a line stay. A word that is wider than a line, such as a path or a command in backticks, stays whole.
    """
    if _long(text) <= width:
        return [text]
    lines, line = [], ""
    for word in _WORD.findall(text):
        if line.strip() and _long(line) + _long(word) > width:
            lines.append(line)
            line = " " * hang + word.lstrip()
        else:
            line += word
    return [*lines, line]


def colours() -> bool:
    """Whether standard output is a terminal that shows colours, and the user did not disable them."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def state_colour(state: str) -> str:
    """A state in its colour; unchanged if it has no colour."""
    code = _STATES.get(state.split()[0]) if state.strip() else None
    return f"\x1b[{code}m{state}\x1b[0m" if code else state


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "", width: int | None = None,
    coloured: bool = False,
) -> list[str]:  # fmt: skip
    """The lines of a table of text, numbers to the right; none without rows. ``coloured``: states in their colours.

    What is wider than ``width`` (default: the terminal) is wrapped at words. A last column of sentences moves below its
    row where it would become narrow, and columns that still do not fit follow in a second table.
    """
    if not rows:
        return []
    room = (columns() if width is None else width) - len(indent)
    right = [all(_numeric(row[k]) for row in rows) for k in range(len(header))]
    all_rows = [header, *rows]
    natural = [max(_long(row[k]) for row in all_rows) for k in range(len(header))]
    least = [_least(header[k], [row[k] for row in rows]) for k in range(len(header))]
    has_note = len(header) > 1 and not right[-1] and natural[-1] > least[-1]
    if has_note:
        least[-1] = max(least[-1], min(natural[-1], _NOTE_LEAST))
    note = len(header) - 1 if has_note else None
    drawing = _Drawing(right, [name in _STATE_COLUMNS for name in header] if coloured else [], room)
    shown = list(range(len(header)))
    if (widths := _fitted(natural, least, room)) is not None:
        lines = drawing.lines(all_rows, shown, widths, note)
    elif has_note and (widths := _fitted(natural[:-1], least[:-1], room)) is not None:
        lines = drawing.lines(all_rows, shown[:-1], widths, note)
    else:
        lines = drawing.in_blocks(all_rows, natural, least)
    return [indent + line for line in lines]


class _Drawing:
    """How the cells of a table are drawn."""

    def __init__(self, right: Sequence[bool], state: Sequence[bool], room: int) -> None:
        self._right, self._state, self._room = right, state, room

    def lines(
        self, rows: Sequence[Sequence[str]], shown: Sequence[int], widths: Sequence[int], note: int | None = None
    ) -> list[str]:  # fmt: skip
        """The columns ``shown``; what stands in the column ``note`` moves below its row where it is long."""
        found: list[str] = []
        for number, row in enumerate(rows):
            below = number and note is not None and self._is_long(row[note], note, shown, widths)
            drawn = [*row[:-1], ""] if below else row
            found += self._row(drawn, shown, widths, head=not number)
            if below:
                width = self._room - len(_NOTE_INDENT)
                found += [_NOTE_INDENT + line for line in _wrapped(row[-1], width)]
        return found

    def _is_long(self, text: str, note: int, shown: Sequence[int], widths: Sequence[int]) -> bool:
        """Whether it would take more lines in its row than below."""
        if note not in shown:
            return bool(text)
        return len(_wrapped(text, widths[shown.index(note)])) > _NOTE_LINES

    def in_blocks(
        self, rows: Sequence[Sequence[str]], natural: Sequence[int], least: Sequence[int]
    ) -> list[str]:
        """As many columns as fit, each time after the first one, which names the row."""
        first = min(natural[0], max(least[0], self._room // 3), self._room // 2)
        found: list[str] = []
        rest = list(range(1, len(natural)))
        while rest:
            shown, taken = [0], first
            widths = [first]
            while rest and (len(shown) == 1 or taken + len(_GAP) + least[rest[0]] <= self._room):
                k = rest.pop(0)
                width = min(least[k], self._room - first - len(_GAP))
                shown.append(k)
                widths.append(width)
                taken += len(_GAP) + width
            found += ([""] if found else []) + self.lines(rows, shown, widths)
        return found or self.lines(rows, [0], [first])

    def _row(
        self, row: Sequence[str], shown: Sequence[int], widths: Sequence[int], *, head: bool
    ) -> Iterator[str]:
        cells = [_wrapped(row[k], width) for k, width in zip(shown, widths, strict=True)]
        for number in range(max(len(cell) for cell in cells)):
            parts = []
            for k, cell, width in zip(shown, cells, widths, strict=True):
                text = cell[number] if number < len(cell) else ""
                pad = " " * (width - _long(text))
                if self._state and self._state[k] and not head:
                    text = state_colour(text)
                parts.append(pad + text if self._right[k] else text + pad)
            yield _GAP.join(parts).rstrip()


def _fitted(natural: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Widths that fit, the widest columns narrowed first; None where even the narrowest do not."""
    room -= len(_GAP) * (len(natural) - 1)
    if sum(least) > room:
        return None
    widths = list(natural)
    while (over := sum(widths) - room) > 0:
        k = max((k for k in range(len(widths)) if widths[k] > least[k]), key=lambda k: widths[k])
        widths[k] = max(least[k], widths[k] - max(over // len(widths), 1))
    return widths


def _wrapped(text: str, width: int) -> list[str]:
    if _long(text) <= width:
        return [text]
    if text.isascii():
        return wrap(text, width, break_on_hyphens=False) or [""]
    return _wrapped_wide(text, width)


def _wrapped_wide(text: str, width: int) -> list[str]:
    """As :func:`textwrap.wrap`, for characters that are two columns wide, or none."""
    lines, line = [], ""
    for word in text.split():
        if line and _long(line) + 1 + _long(word) <= width:
            line += f" {word}"
            continue
        if line:
            lines.append(line)
        line = ""
        for character in word:
            if line and _long(line + character) > width:
                lines.append(line)
                line = ""
            line += character
    return [*lines, line]


def _least(name: str, cells: Sequence[str]) -> int:
    """The width that a column needs: of its widest word, and of short cells as they are."""
    widest = max(map(_long, cells))
    if widest > _SHORT:
        widest = max(_long(word) for cell in cells for word in (cell.split() or [""]))
    return max(widest, *map(_long, name.split() or [""]))


def _long(text: str) -> int:
    """Columns on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _numeric(cell: str) -> bool:
    return cell in ("", "-") or cell.replace(".", "", 1).replace("-", "", 1).isdigit()


def without_empty(
    header: Sequence[str], rows: Sequence[Sequence[str]], name: str
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The table without the column ``name`` where no row has anything there, such as money without a price."""
    at = header.index(name)
    if any(row[at] != "-" for row in rows):
        return header, rows
    return [*header[:at], *header[at + 1 :]], [[*row[:at], *row[at + 1 :]] for row in rows]
