"""The waterfall as text: bars of block characters, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.ledger.taxonomy import GROUP_COLOURS
from unidle.page.frame import visible
from unidle.report.advice import Advice, best_advice, shell_lines, steps_advice
from unidle.report.model import ReportData
from unidle.report.palette import ansi_256
from unidle.report.text import clock_time, device_time, money, percent
from unidle.report.totals import GroupLine, LeafLine, cost_total, waterfall_lines
from unidle.words import counted, duration

MIN_WIDTH: Final = 60
SHOWN_FROM_PPM: Final = 5_000  # 0.5 %
_LABEL: Final = 21
_MIN_BAR: Final = 10
_MARKS: Final = {"inferred": "~", "modelled": "≈"}
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_HATCH: Final = "░"


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    group: str
    ns: int
    before_ns: int
    share: str
    cost: float | None
    hatched: bool


def waterfall(data: ReportData, width: int = 80, colour: bool = False) -> str:
    """Where the device time went, one line per leaf over 0.5 %, the smaller ones summed.

    No line is wider than ``width`` columns (at least 60). With ``colour`` the bars carry ANSI
    colours; the text without them is the same. The last lines say what would win back most.
    """
    width = max(width, MIN_WIDTH)
    lines = list(_head(data, width))
    if data.capacity_ns == 0:
        return "\n".join([*lines, *_empty(data, width)]) + "\n"
    rows = list(_rows(data))
    cells = [*(_cells(row, data) for row in rows), _capacity_cells(data)]
    numbers = _columns(cells)
    if width - len(numbers[0]) < _LABEL + _MIN_BAR + 2:
        numbers = _columns([row[:2] for row in cells])  # the cost goes first
    room = width - _LABEL - len(numbers[0]) - 2
    for row, text in zip(rows, numbers, strict=False):
        lines.append(f"{_fit(row.label, _LABEL)} {_bar(row, data.capacity_ns, room, colour)} {text}")
    lines.append(f"{'capacity':<{width - len(numbers[-1]) - 1}} {numbers[-1]}")
    lines += [*_how(rows), "", *_ratios(data, width), *_advice(data, width)]
    return "\n".join(lines) + "\n"


def _head(data: ReportData, width: int) -> Iterator[str]:
    tracks = len({track.device for track in data.devices})
    yield _fit(data.title, width).rstrip()
    window = f"{clock_time(data.window_start_ns, seconds_only=True)} UTC"
    span = duration(data.window_end_ns - data.window_start_ns)
    yield _fit(f"{counted(tracks, 'device')} for {span} from {window}", width).rstrip()
    yield ""


def _empty(data: ReportData, width: int) -> list[str]:
    words = ("unidle", "run", "--ranks", "4", "--store", visible(data.store), "--", "python", "train.py")
    return ["No device time in this window yet. Start a job:", *_command(words, width)]


def _rows(data: ReportData) -> Iterator[_Row]:
    small: list[LeafLine] = []
    for group in waterfall_lines(data):
        shown = [x for x in group.leaves if x.ns * 1_000_000 > data.capacity_ns * SHOWN_FROM_PPM]
        small += [x for x in group.leaves if x not in shown]
        for leaf in shown:
            yield _leaf_row(group, leaf)
    if small:
        ns = sum(x.ns for x in small)
        costs = [x.cost for x in small if x.cost is not None]
        yield _Row(
            label=f"{len(small)} smaller",
            group="",
            ns=ns,
            before_ns=data.capacity_ns - ns,
            share=percent(ns, data.capacity_ns),
            cost=sum(costs) if costs else None,
            hatched=False,
        )


def _leaf_row(group: GroupLine, leaf: LeafLine) -> _Row:
    label = leaf.leaf if leaf.leaf == group.group else f"{group.group} {leaf.leaf}"
    label += "".join(mark for how, mark in _MARKS.items() if any(how == known for known, _ in leaf.by_how))
    return _Row(label, group.group, leaf.ns, leaf.before_ns, leaf.share, leaf.cost, leaf.hatched)


def _bar(row: _Row, whole_ns: int, room: int, colour: bool) -> str:
    """A bar that starts where the one above it ended; what is not 0 is at least an eighth of a cell."""
    start = min(row.before_ns * room // whole_ns, room - 1)
    end_eighths = (row.before_ns + row.ns) * room * 8 // whole_ns
    full, rest = divmod(max(end_eighths - start * 8, 1), 8)
    tail = _EIGHTHS[rest] if rest else ""
    solid = _HATCH * (full + len(tail)) if row.hatched else "█" * full + tail
    blanks = " " * (room - start - len(solid))
    if colour and row.group in GROUP_COLOURS:
        solid = f"\x1b[38;5;{ansi_256(GROUP_COLOURS[row.group])}m{solid}\x1b[0m"
    return " " * start + solid + blanks


def _cells(row: _Row, data: ReportData) -> tuple[str, ...]:
    return row.share, device_time(row.ns, data.time_unit), visible(money(row.cost, data.currency))


def _capacity_cells(data: ReportData) -> tuple[str, ...]:
    cost = visible(money(cost_total(data), data.currency))
    return percent(data.capacity_ns, data.capacity_ns), device_time(data.capacity_ns, data.time_unit), cost


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Cells as right-aligned columns; a column that is empty throughout goes."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True) if w) for row in rows]


def _how(rows: list[_Row]) -> Iterator[str]:
    for how, mark in _MARKS.items():
        if any(row.label.endswith(mark) for row in rows):
            yield f"{mark} {how} in part or in whole; the rest is measured"


def _ratios(data: ReportData, width: int) -> Iterator[str]:
    for ratio in data.ratios:
        unit = data.time_unit
        shown = "-" if ratio.value is None else f"{100 * ratio.value:.1f} %"
        parts = f"{device_time(ratio.numerator_ns, unit)} of {device_time(ratio.denominator_ns, unit)}"
        parts = parts if ratio.denominator_ns else "no time to divide by"
        yield _fit(f"{_fit(ratio.name, _LABEL)} {shown:>7}  {parts}", width).rstrip()
    if data.ratios:
        yield ""


def _advice(data: ReportData, width: int) -> list[str]:
    advice = best_advice(data)
    if advice is None:
        return ["No losses: every second was useful."]
    steps = steps_advice(data)
    return [*_advised(advice, data, width), *([] if steps is None else _advised(steps, data, width))]


def _advised(advice: Advice, data: ReportData, width: int) -> list[str]:
    line = advice.line
    cause = line.leaf if line.leaf == line.group else f"{line.group} {line.leaf}"
    text = f"{advice.lead}: {cause}, {device_time(line.ns, data.time_unit)} ({line.share}): {advice.text}:"
    words = tuple(visible(word) for word in advice.words)
    return [*_wrapped(text, width), *_command(words, width)]


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap  # only here: it costs a regular expression at import

    return textwrap.wrap(text, width)


def _command(words: tuple[str, ...], width: int) -> list[str]:
    from rich.cells import cell_len  # lazily: rich is slow to import

    return shell_lines(words, width, cell_len)


def _fit(text: str, width: int) -> str:
    """``text`` in exactly ``width`` columns, cut with an ellipsis or filled with blanks."""
    from rich.cells import cell_len, set_cell_size  # lazily: rich is slow to import

    clean = visible(text)
    if cell_len(clean) <= width:
        return clean + " " * (width - cell_len(clean))
    return set_cell_size(clean, width - 1) + "…"
