"""Fillers of a job as HTML: whether training noticed them, and a step without and with them. Reads without scripts."""

from __future__ import annotations

from typing import Final

from unidle.page.frame import escaped
from unidle.report.filled import FilledStep, FillStory
from unidle.report.palette import leaf_colour
from unidle.report.text import number
from unidle.words import counted, duration

_WIDTH: Final = 1000
_ROW: Final = 22
_BAR: Final = 18
_RANKS_MOST: Final = 32
_HUES: Final = ("#3b6fb6", "#c2702d", "#7a5ba8", "#2f8f8a", "#b3557f", "#7d7a2c")
"""Of requests that follow each other."""


def fillers(story: FillStory | None) -> str:
    """The part of a job's story; empty without fillers."""
    if story is None:
        return ""
    names = ", ".join(escaped(name.rpartition("/")[2]) for name in story.fillers)
    lines = [
        f"<p><b>Fillers in its waits</b> <span class=quiet>{names}</span></p>",
        f"<p>{_proof(story)}</p>",
        f"<p>{_use(story)}</p>" if story.waited_ns else "",
        *(_step(step) for step in story.steps),
    ]
    if story.steps:
        lines.append(
            '<p class="quiet">Dark: the rank computes. Light: it waits. Other colours: what ran in a wait, each one request or other unit of work.</p>'
        )
    if story.endings:
        shown = "".join(f"<li><bdi>{escaped(text)}</bdi></li>" for text in story.endings[:8])
        lines.append(
            f"<p class=quiet>{counted(len(story.endings), 'filler')} ended before training did:</p><ul>{shown}</ul>"
        )
    return f'<div class="fillers">{"".join(lines)}</div>'


def _proof(story: FillStory) -> str:
    found = story.slow_down
    pairs = (
        f"from {counted(found.pairs, 'pair')} of blocks of steps in random order, with and without fillers"
    )
    if found.mean_pct is None or found.low_pct is None or found.high_pct is None:
        return f"Slow-down of training: not known, {pairs}."
    interval = f"95 % interval {found.low_pct:.2f} to {found.high_pct:.2f} %, {pairs}"
    if not found.known:
        return f"Slow-down of training: not known yet; {interval}."
    return f"Slow-down of training: <b>{found.mean_pct:.2f} %</b>, {interval}."


def _use(story: FillStory) -> str:
    parts = (story.filled_ns, story.discarded_ns, story.left_ns)
    useful, discarded, left = (100 * part / story.waited_ns for part in parts)
    return (
        f"Waits of {duration(story.waited_ns)} in which fillers were admitted: {useful:.1f} % useful work of fillers, "
        f"{discarded:.1f} % discarded, {left:.1f} % left; {number(story.units)} units."
    )


def _step(step: FilledStep) -> str:
    ranks = step.ranks[:_RANKS_MOST]
    waited = sum(b - a for _, waits, _ in ranks for a, b in waits)
    ran = sum(run.end_ns - run.begin_ns for _, _, runs in ranks for run in runs)
    whole = step.length_ns * len(ranks)
    notes = [f"{duration(step.length_ns)}", f"{100 * waited / whole:.0f} % waits"]
    notes += [f"{100 * ran / whole:.0f} % fillers"] * step.filled
    title = f"Step {number(step.step)}, {'with' if step.filled else 'without'} fillers"
    rows = "".join(_rank(step, k) for k in range(len(ranks)))
    height = _ROW * len(ranks)
    return (
        f'<figure class="plot step-picture" role="img" aria-label="{title}: {", ".join(notes)}">'
        f"<figcaption><b>{title}</b> <span class=quiet>{', '.join(notes)}</span></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" style="width:100%;height:{height}px">{rows}</svg></figure>'
    )


def _rank(step: FilledStep, row: int) -> str:
    label, waits, runs = step.ranks[row]
    y = row * _ROW
    parts = [_bar(y, 0, step.length_ns, step, leaf_colour("useful", "step"), f"rank {label}: computes")]
    parts += [
        _bar(y, a, b, step, leaf_colour("bubble", "step"), f"rank {label} waits {duration(b - a)}")
        for a, b in waits
    ]
    parts += [
        _bar(y, run.begin_ns, run.end_ns, step, _HUES[run.of % len(_HUES)], f"rank {label}: {run.of} for {duration(run.end_ns - run.begin_ns)}")
        for run in runs
    ]  # fmt: skip
    return "".join(parts)


def _bar(y: int, begin_ns: int, end_ns: int, step: FilledStep, colour: str, title: str) -> str:
    x, right = (_WIDTH * min(max(at, 0), step.length_ns) / step.length_ns for at in (begin_ns, end_ns))
    return (
        f'<rect x="{x:.2f}" y="{y}" width="{max(right - x, 0.5):.2f}" height="{_BAR}" fill="{colour}">'
        f"<title>{escaped(title)}</title></rect>"
    )
