"""The report of a run: as Markdown, and as the parts of a page above its flame graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from unidle.page.frame import escaped
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.tune.trial.measure import SpeedUp
    from unidle.tune.trial.results import TriedChange, TuneRun
    from unidle.tune.trial.sampled import SampledProfile

_COLOURS = {
    "data": "#e6a023", "forward": "#1b9e77", "backward": "#66a61e", "optimizer": "#7570b3", "checkpoint": "#8c510a",
    "communication": "#d1495b", "prefill": "#00798c", "decode": "#a05eb5", "python": "#3b7dd8",
}  # fmt: skip
_HOW = (
    "Each kept change: refused by no rule against cheats; all together compute the same in float64 to 1e-9, with the program's seeds and with "
    "others, and in its own precision within its noise. Speed-ups are of steps, with 99 % intervals, next to pairs of equal programs."
)


class PartTimes(NamedTuple):
    """Milliseconds of a part of a step."""

    part: str
    before: float
    after: float


Waterfall = list[PartTimes]


def waterfall(before: SampledProfile, after: SampledProfile) -> Waterfall:
    """Milliseconds of a step by part, before and after; parts without time are left out. Empty without steps on either side."""
    if before.step_ms is None or after.step_ms is None:
        return []
    first, then = before.parts(), after.parts()
    rows = [
        PartTimes(name, share * before.step_ms, then[name] * after.step_ms) for name, share in first.items()
    ]
    return [row for row in rows if max(row.before, row.after) >= 0.0005 * before.step_ms]


def headline(found: TuneRun) -> str:
    """One sentence."""
    if found.speedup is None:
        return "Nothing is kept." if found.tried else "There was nothing to try."
    what = counted(len(found.stack), "change")
    return f"{what} kept: steps are {_speed(found.speedup)} times faster."


def markdown(found: TuneRun) -> str:
    """The whole report."""
    lines = ["# What makes the program faster", "", headline(found), "", *_facts(found), ""]
    if rows := waterfall(found.before, found.after):
        lines += ["## A step, in ms", "", "| part | before | after |", "|---|--:|--:|"]
        lines += [f"| {name} | {one:.2f} | {other:.2f} |" for name, one, other in rows]
        lines += [f"| all | {found.before.step_ms:.2f} | {found.after.step_ms:.2f} |", ""]
    lines += ["## Tried", "", "| verdict | change | speed-up | CPU | why |", "|---|---|--:|--:|---|"]
    lines += [
        f"| {one.verdict} | {_plain(_name(one, found))} | {_speed(one.speedup)} | {_ratio(one.cpu)} | {_plain(one.why)} |"
        for one in found.tried
    ]
    lines += ["", _HOW, ""]
    for one in found.tried:
        lines += [f"### {one.verdict}: {_plain(_name(one, found))}", "", *_indented(one.patch), ""]
    return "\n".join(lines).rstrip() + "\n"


def html_parts(found: TuneRun) -> list[str]:
    """Sections for :func:`unidle.page.frame.page`, with the waterfalls and all patches."""
    rows = waterfall(found.before, found.after)
    parts = [
        f'<section id="tune"><p><b>{escaped(headline(found))}</b></p>',
        *(f'<p class="quiet">{escaped(line.removeprefix("- "))}</p>' for line in _facts(found)),
    ]
    if rows:
        most = max(sum(row.before for row in rows), sum(row.after for row in rows))
        parts += ["<h2>A step, before and after</h2>", _bars(rows, "before", most), _bars(rows, "after", most)]  # fmt: skip
        body = "".join(
            f'<tr data-part="{name}"><td><span style="display:inline-block;width:10px;height:10px;background:{_COLOURS[name]}"></span> {name}</td>'
            f'<td class="number">{one:.2f}</td><td class="number">{other:.2f}</td></tr>'
            for name, one, other in rows
        )
        parts.append(
            f'<table id="waterfall"><thead><tr><th>part</th><th>before, ms</th><th>after, ms</th></tr></thead><tbody>{body}</tbody></table>'
        )
    parts += ["<h2>What was tried</h2>", *_tried(found), f'<p class="quiet">{escaped(_HOW)}</p>']
    if found.speedup is not None:
        parts.append("<h2>Where the time goes, compared with before</h2>")
    return [*parts, "</section>"]


def _bars(rows: Waterfall, label: Literal["before", "after"], most: float) -> str:
    times = [(row.part, row.before if label == "before" else row.after) for row in rows]
    bars = "".join(
        f'<span title="{part} {ms:.2f} ms" style="display:inline-block;height:18px;width:{100 * ms / most:.2f}%;background:{_COLOURS[part]}"></span>'
        for part, ms in times
    )
    total = sum(ms for _, ms in times)
    return f'<p class="quiet">{label}: {total:.2f} ms</p><div id="bar-{label}" style="white-space:nowrap;font-size:0">{bars}</div>'


def _tried(found: TuneRun) -> Iterator[str]:
    for one in found.tried:
        fast = f" {_speed(one.speedup)}x" if one.speedup else ""
        cpu = f", CPU {_ratio(one.cpu)}x" if one.cpu else ""
        is_open = " open" if one.verdict == "kept" else ""
        yield (
            f"<details{is_open}><summary><b>{one.verdict}</b> {escaped(_name(one, found))}{fast}{cpu}</summary>"
            f"<p>{escaped(one.why)}</p><pre>{_escaped_lines(one.patch)}</pre></details>"
        )


def _escaped_lines(text: str) -> str:
    return "\n".join(escaped(line) for line in text.split("\n"))


def _facts(found: TuneRun) -> list[str]:
    base, window = found.baseline, found.window
    facts = [
        f"- The unchanged program: {base.wall_s:.1f} s, {base.cpu_s:.1f} s of CPU, {counted(found.steps, 'step')}."
    ]
    if window.last:
        facts.append(f"- Measured: steps {window.first + 1} to {window.last}.")
    if found.waited is not None:
        facts.append(
            f"- Programs waited {100 * found.waited:.0f} % of the measured time for a CPU; that is left out of their times."
        )
    if found.control is not None:
        facts.append(f"- Two equal programs: {_speed(found.control)}.")
    return facts


def _name(one: TriedChange, found: TuneRun) -> str:
    place = f"{one.change.file}:{one.change.line}" if one.change.line else one.change.file
    return f"{found.model if one.change.code == 'agent' else one.change.code} {place}"


def _speed(one: SpeedUp | None) -> str:
    return f"{one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}]" if one is not None else ""


def _ratio(one: float | None) -> str:
    return f"{one:.2f}" if one is not None else ""


def _plain(text: str) -> str:
    """Text in a table of Markdown."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.rstrip("\n").split("\n")]
