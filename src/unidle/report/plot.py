"""Figures of a job over its time as small pictures that need no script; the page's script adds exact values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from unidle.page.frame import escaped, visible
from unidle.report.model import Curve, EventLine, EventMark, JobStory
from unidle.words import duration

SIGNS: Final[dict[EventMark, str]] = {
    "failure": "\u00d7",
    "kill": "\u25a0",
    "restart": "\u25b6",
    "checkpoint": "\u25c6",
}
_LOG_FROM: Final = 100  # times the least value
_APART_PPM: Final = 12_000  # of the width: signs that are closer are one
_TICKS_NS: Final = tuple(
    n * unit for unit, steps in (
        (1_000_000, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1_000_000_000, (1, 2, 5, 10, 15, 30)), (60_000_000_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000_000_000, (1, 2, 3, 6, 12)), (86_400_000_000_000, (1, 2, 5, 10, 20, 50, 100, 365)),
    ) for n in steps
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """The values at the lower and the upper edge of a picture."""

    low: float
    high: float
    log: bool = False

    def y(self, value: float) -> float:
        """From the top, 0 to 100."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(100 - 100 * (at - low) / (high - low), 2) if high > low else 50.0


def plots(story: JobStory, events: Sequence[EventLine], first: int) -> str:
    """The job's pictures, one below the other on one time axis; they are ``first``, ``first + 1``, ... on the page."""
    given = [(title, unit, curves) for title, unit, curves in figures(story) if curves]
    if not given:
        return ""
    marks = [
        e for e in events if e.job == story.job and e.mark and story.start_ns <= e.time_ns <= story.end_ns
    ]
    drawn = [
        _figure(story, title, unit, curves, marks, first + k) for k, (title, unit, curves) in enumerate(given)
    ]
    return f'<div class="plots">{"".join(drawn)}{_axis(story)}{_key(marks)}</div>'


def figures(story: JobStory) -> list[tuple[str, str, tuple[Curve, ...]]]:
    """Title, unit and curves of each picture of a job."""
    named = [("Steps per second", "steps/s", story.speed), ("Loss", "loss", story.loss)]
    return [(title, unit, curves) for title, unit, curves in named if curves]


def _figure(
    story: JobStory, title: str, unit: str, curves: Sequence[Curve], marks: Sequence[EventLine], number: int
) -> str:
    values = [value for curve in curves for _, value in curve.points if value is not None]
    if not values:
        return f'<figure class="plot"><figcaption><b>{title}</b> <span class=quiet>never a finite number</span></figcaption></figure>'
    scale = _scale(values, from_zero=unit == "steps/s")
    lost = next(((c, t) for c in curves for t, value in c.points if value is None), None)
    since = (lost[1] - story.start_ns) if lost else 0
    middle = f"median {figure(median(values))}" if unit == "steps/s" else f"least {figure(min(values))}"
    notes = [f"last {figure(values[-1])}", middle, f"most {figure(max(values))}"]
    notes += ["log scale"] * scale.log + [f"<b>no finite number from {duration(since)} on</b>"] * bool(lost)
    lines = "".join(_lines(story, curve, scale) for curve in curves)
    return (
        f'<figure class="plot {unit.partition("/")[0]}" data-plot="{number}" tabindex="0" role="img" '
        f'aria-label="{title} over time: {", ".join(notes[:3])}">'
        f"<figcaption><b>{title}</b> <span class=quiet>{', '.join(notes)}</span></figcaption>"
        f'<div class="signs">{_signs(story, marks)}</div><div class="area">'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{_mark_lines(story, marks)}{lines}</svg>'
        f'<span class="high">{figure(scale.high)}</span><span class="low">{figure(scale.low)}</span></div></figure>'
    )


def figure(value: float) -> str:
    """Three digits that tell something: ``0.0123``, ``12.3``, ``1,230``, ``1.2e+07``."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scale(values: Sequence[float], *, from_zero: bool) -> Scale:
    low, high = min(values), max(values)
    if from_zero:
        return Scale(0.0, high or 1.0)
    if low > 0 and high > _LOG_FROM * low:
        return Scale(low, high, log=True)
    if 0 <= low <= 0.5 * high:
        low = 0.0
    return Scale(low, high) if high > low else Scale(low - (abs(low) or 1.0), high + (abs(high) or 1.0))


def _x(story: JobStory, time_ns: int) -> float:
    """From the left, 0 to 1000."""
    return round(1000 * (time_ns - story.start_ns) / max(story.end_ns - story.start_ns, 1), 2)


def _lines(story: JobStory, curve: Curve, scale: Scale) -> str:
    parts: list[list[str]] = [[]]
    for time_ns, value in curve.points:
        if value is None:
            parts.append([])
        else:
            parts[-1].append(f"{_x(story, time_ns):g},{scale.y(value):g}")
    drawn = (part if len(part) > 1 else [*part, *part] for part in parts if part)
    return "".join(f'<polyline points="{" ".join(part)}"/>' for part in drawn)


def _mark_lines(story: JobStory, marks: Iterable[EventLine]) -> str:
    xs: dict[tuple[str, int], float] = {}
    for mark in marks:
        x = _x(story, mark.time_ns)
        xs.setdefault((mark.mark, int(x * 1000 // _APART_PPM)), x)
    return "".join(
        f'<line class="{kind}" x1="{x:g}" x2="{x:g}" y1="0" y2="100"/>' for (kind, _), x in xs.items()
    )


def _signs(story: JobStory, marks: Sequence[EventLine]) -> str:
    """The worst of the events that are too close to each other to be distinguished."""
    groups: list[tuple[float, list[EventLine]]] = []
    for mark in sorted(marks, key=lambda event: event.time_ns):
        x = _x(story, mark.time_ns)
        if groups and (x - groups[-1][0]) * 1000 < _APART_PPM:
            groups[-1][1].append(mark)
        else:
            groups.append((x, [mark]))
    return "".join(_sign(story, x, near) for x, near in groups)


def _sign(story: JobStory, x: float, near: Sequence[EventLine]) -> str:
    worst = next(kind for kind in SIGNS if any(event.mark == kind for event in near))
    texts = [
        f"{duration(e.time_ns - story.start_ns)}: {e.kind}{f', {e.text}' if e.text else ''}" for e in near[:6]
    ]
    texts += [f"{len(near) - 6} more"] if len(near) > 6 else []
    title = escaped(visible("; ".join(texts), 500))
    return f'<i style="left:clamp(7px,{x / 10:g}%,100% - 7px)" title="{title}">{SIGNS[worst]}</i>'


def _axis(story: JobStory) -> str:
    span_ns = max(story.end_ns - story.start_ns, 1)
    step = next((tick for tick in _TICKS_NS if span_ns / tick <= 4.5), _TICKS_NS[-1])
    ticks = "".join(_tick(at, span_ns) for at in range(0, span_ns, step))
    return f'<div class="ticks quiet" aria-hidden="true">{ticks}</div>'


def _tick(at_ns: int, span_ns: int) -> str:
    """Its name stands right of it; where there is no room, left of it."""
    last = " class=last" if at_ns > 0.75 * span_ns else ""
    return (
        f'<span{last} style="left:{100 * at_ns / span_ns:.3f}%">{duration(at_ns).replace(".0 ", " ")}</span>'
    )


def _key(marks: Sequence[EventLine]) -> str:
    kinds = {mark.mark for mark in marks}
    texts = [f"{sign} {kind}" for kind, sign in SIGNS.items() if kind in kinds]
    shown = " \u2002 ".join(texts)
    return f'<p class="quiet">{shown}</p>' if texts else ""
