"""Which rank is late, by how much, and why. Pure.

In a gang that works in step, a step is each rank's own work and its waiting for the others, so the rank that waits
least has the most work of its own: it is late by what the others wait longer than it does. Only durations of each
rank's own clock are compared, so clocks of nodes may differ. Why it is late is what its own budget has more of than
the budgets of the others, and the line of its code that takes so much longer there.

No rank is blamed where waits follow from the design (stages of a pipeline), where ranks do not step together, or where
the differences are no larger than usual between ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import erf, sqrt
from statistics import fmean, median, median_high, median_low
from typing import Final, Literal

from unidle.scope.steps import quantile

WAITING: Final = ("collective",)
NEED_SHARE: Final = 0.01  # of the time: less is not worth a name
NEED_SPREADS: Final = (
    4.0  # times the typical distance of ranks from the middle one; fewer where few ranks tell it badly
)
NEED_CONFIDENCE: Final = 0.95
SURE: Final = 0.999  # more is never claimed: the model itself may be wrong
STRUCTURAL: Final = 0.3  # of the waiting is for one peer's data: a pipeline
OUT_OF_STEP: Final = 0.15  # steps per second differ by so much: no gang in step
LONG_STEP: Final = 1.6  # times the median: such a step held something unusual
EXPLAINS: Final = 0.25  # of the lateness, and a line or category is named
_NORMAL_MAD: Final = 1.4826

Verdict = Literal["late", "even", "cannot tell"]
Measure = Literal["spans", "budget", "samples", "none"]


@dataclass(frozen=True, slots=True)
class RankShares:
    """What is known of one rank, in shares of its own time. :func:`unidle.scope.rank_views.views` makes it of a profile."""

    rank: int
    pid: int
    wall_ns: int
    wait: float  # share of its time that it waits for others
    wait_error: float  # standard error of that share
    wait_freedom: int  # degrees of freedom of that error
    measure: Measure
    one_to_one: float = 0.0  # part of the waiting that is for the data of one peer (send, receive)
    steps_ns: tuple[int, ...] = ()  # durations of whole steps
    budget: Mapping[str, float] = field(default_factory=dict)  # percent of time by category; may be empty
    lines: Mapping[str, float] = field(
        default_factory=dict
    )  # share of time outside collectives by line of code


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that a late rank has more of than the others."""

    what: str  # a category of the budget, or nothing where only a line is known
    more_pct: float  # of its time
    more_ms: float | None  # per step, nothing where steps are not seen
    line: str = ""  # "train.py:31 load", or nothing


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of steps, in milliseconds. ``long`` counts those of more than 1.6 times the median."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    cv_pct: float  # standard deviation in percent of the mean
    long: int


@dataclass(frozen=True, slots=True)
class Blame:
    """One rank compared with its peers. ``late_ms`` and ``wait_ms`` are per step, nothing where steps are not seen."""

    rank: int
    pid: int
    wait_pct: float
    wait_ms: float | None
    late_pct: float  # of its time, less than its peers wait; negative: it waits longer than they do
    late_ms: float | None
    confidence: float  # that it is later than its peers
    is_late: bool
    causes: tuple[Cause, ...]
    steps: StepTimes | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ranks, in order of rank, and the verdict in one line."""

    verdict: Verdict
    text: str
    measure: Measure
    ranks: tuple[Blame, ...]
    steps: StepTimes | None  # over the steps of all ranks

    @property
    def late(self) -> tuple[int, ...]:
        """The late ranks, latest first."""
        found = sorted((b for b in self.ranks if b.is_late), key=lambda b: -b.late_pct)
        return tuple(b.rank for b in found)

    def to_json(self) -> list[dict[str, object]]:
        """The value of ``"ranks"`` in the command's JSON."""
        return [_row(b) for b in self.ranks]


def judge(views: Sequence[RankShares], *, peers: Mapping[int, Hashable] | None = None) -> Comparison:
    """Compare ranks. Ranks with the same value in ``peers`` (by rank) do the same work; without it all do.

    Give ``peers`` for jobs with a pipeline: the ranks that hold the same stage.
    """
    ordered = sorted(views, key=lambda v: (v.rank, v.pid))
    step_ms = _step_ms(ordered)
    steps = step_times([ns for v in ordered for ns in v.steps_ns])
    measure: Measure = ordered[0].measure if ordered else "none"
    refused = _refusal(ordered, peers)
    groups: dict[Hashable, list[RankShares]] = {}
    for view in ordered:
        groups.setdefault(peers.get(view.rank) if peers else None, []).append(view)
    blames = [
        _blame(view, groups[peers.get(view.rank) if peers else None], step_ms, refused is None)
        for view in ordered
    ]
    blames = _only_what_stands_out(blames)
    if refused is not None:
        return Comparison("cannot tell", refused, measure, tuple(blames), steps)
    found = [b for b in blames if b.is_late]
    text = _late_text(found, step_ms) if found else _even_text(ordered)
    return Comparison("late" if found else "even", text, measure, tuple(blames), steps)


def step_times(durations_ns: Sequence[int]) -> StepTimes | None:
    """Statistics of step durations; nothing without any."""
    if not durations_ns:
        return None
    ordered = sorted(ns / 1e6 for ns in durations_ns)
    mean = fmean(ordered)
    middle = median(ordered)
    spread = sqrt(fmean([(ms - mean) ** 2 for ms in ordered]))
    return StepTimes(
        count=len(ordered),
        p50_ms=middle,
        p90_ms=quantile(ordered, 0.9),
        p99_ms=quantile(ordered, 0.99),
        mean_ms=mean,
        cv_pct=100 * spread / mean if mean else 0.0,
        long=sum(ms > LONG_STEP * middle for ms in ordered),
    )


def _refusal(views: Sequence[RankShares], peers: Mapping[int, Hashable] | None) -> str | None:
    """Why no rank may be blamed; None if one may."""
    if len(views) < 2:
        return "one rank: there is no other rank to compare it with"
    if any(v.measure == "none" for v in views) or all(v.wait == 0 for v in views):
        return "no collective was seen: it is unknown which ranks wait for which"
    if len({v.measure for v in views}) > 1:
        return "ranks were seen by different means: their waits cannot be compared"
    if peers is None and median(v.one_to_one for v in views) > STRUCTURAL:
        return "ranks wait for data of single peers, as stages of a pipeline do: such waits do not show a straggler"
    paces = [len(v.steps_ns) / v.wall_ns for v in views if v.steps_ns and v.wall_ns]
    fewest = min((len(v.steps_ns) for v in views if v.steps_ns), default=0)
    if len(paces) == len(views) and 1 - min(paces) / max(paces) > OUT_OF_STEP + 2 / (fewest + 1):
        return "ranks do not step together: a late one would hold all of them up"
    return None


def _step_ms(views: Sequence[RankShares]) -> float | None:
    """Of a gang in step: the middle of the ranks' mean steps."""
    means = [fmean(v.steps_ns) / 1e6 for v in views if v.steps_ns]
    return median(means) if means else None


def _blame(view: RankShares, group: Sequence[RankShares], step_ms: float | None, may_blame: bool) -> Blame:
    others = [v for v in group if v is not view]
    late, confidence = _later(view, group) if others else (0.0, 0.0)
    is_late = may_blame and bool(others) and late >= NEED_SHARE and confidence >= NEED_CONFIDENCE
    return Blame(
        rank=view.rank,
        pid=view.pid,
        wait_pct=100 * view.wait,
        wait_ms=None if step_ms is None else view.wait * step_ms,
        late_pct=100 * late,
        late_ms=None if step_ms is None else late * step_ms,
        confidence=confidence,
        is_late=is_late and late >= min(NEED_SPREADS, (len(group) - 1) / 2) * _spread(group),
        causes=_causes(view, others, late, step_ms) if is_late else (),
        steps=step_times(view.steps_ns),
    )


def _later(view: RankShares, group: Sequence[RankShares]) -> tuple[float, float]:
    """The share by which a rank waits less than the middle one of its peers, and how sure that is.

    The middle is the upper one: of two ranks it is the other one; of four, two may be late.
    """
    base = _middle(group)
    late = base.wait - view.wait
    error = sqrt(view.wait_error**2 + base.wait_error**2)
    if error == 0:
        return late, SURE if late > 0 else 0.0
    freedom = max(min(view.wait_freedom, base.wait_freedom), 1)
    # Every rank is tried, so chance has as many tries to make one look late.
    doubt = (1 - _student(late / error, freedom)) * len(group)
    return late, min(max(1 - doubt, 0.0), SURE)


def _middle(group: Sequence[RankShares]) -> RankShares:
    middle = median_high(v.wait for v in group)
    return next(v for v in group if v.wait == middle)


def _spread(group: Sequence[RankShares]) -> float:
    """How far ranks are from the middle one anyway, as a standard deviation that a few late ones do not move."""
    base = _middle(group).wait
    return _NORMAL_MAD * median_low(abs(v.wait - base) for v in group)


def _only_what_stands_out(blames: Sequence[Blame]) -> list[Blame]:
    """Where one rank is very late, another that is a little late is not named: it costs the gang nothing."""
    worst = max((b.late_pct for b in blames if b.is_late), default=0.0)
    return [
        replace(b, is_late=False, causes=()) if b.is_late and b.late_pct < worst / 4 else b for b in blames
    ]


def _causes(
    view: RankShares, others: Sequence[RankShares], late: float, step_ms: float | None
) -> tuple[Cause, ...]:
    """What the rank has more of than the middle one of the others, most first, down to a quarter of its lateness."""
    more = {
        name: pct / 100 - median([o.budget.get(name, 0.0) for o in others]) / 100
        for name, pct in view.budget.items()
        if name not in WAITING
    }
    line, share = _line(view, others)
    told = line if share >= EXPLAINS * late else ""
    found = sorted(((m, name) for name, m in more.items() if m >= EXPLAINS * late), reverse=True)
    if not found and told:
        found = [(share, "")]
    return tuple(
        Cause(name, 100 * m, None if step_ms is None else m * step_ms, told if k == 0 else "")
        for k, (m, name) in enumerate(found)
    )


def _line(view: RankShares, others: Sequence[RankShares]) -> tuple[str, float]:
    """The line of code that takes most more than elsewhere, and the share of time that it takes more."""
    more = {
        line: share - median([o.lines.get(line, 0.0) for o in others]) for line, share in view.lines.items()
    }
    line = max(more, key=lambda name: more[name], default="")
    return line, more.get(line, 0.0)


def _late_text(found: Sequence[Blame], step_ms: float | None) -> str:
    first, *rest = sorted(found, key=lambda b: -b.late_pct)
    others = f" (and {len(rest)} more)" if rest else ""
    if first.late_ms is None or step_ms is None:
        much = f"the others wait {first.late_pct:.0f} % of the time longer than it does"
    else:
        much = f"{first.late_ms:.1f} ms of each step of {step_ms:.1f} ms"
    text = f"rank {first.rank}{others} is a straggler: {much}, {int(100 * first.confidence)} % sure"
    if not first.causes:
        return f"{text}; its budget does not show why"
    cause = first.causes[0]
    more = f"+{cause.more_pct:.0f} %" if cause.more_ms is None else f"+{cause.more_ms:.1f} ms"
    return f"{text}; {f'{cause.what} {more}'.strip()}{', ' + cause.line if cause.line else ''}"


def _even_text(views: Sequence[RankShares]) -> str:
    waits = [100 * v.wait for v in views]
    return f"no rank stands out: they wait {min(waits):.1f} to {max(waits):.1f} % of the time"


def _row(b: Blame) -> dict[str, object]:
    return {
        "rank": b.rank,
        "pid": b.pid,
        "late": b.is_late,
        "late_ms": _rounded(b.late_ms),
        "wait_ms": _rounded(b.wait_ms),
        "wait_pct": round(b.wait_pct, 2),
        "confidence": round(b.confidence, 3),
        "causes": [
            {"what": c.what, "more_pct": round(c.more_pct, 2), "more_ms": _rounded(c.more_ms), "line": c.line}
            for c in b.causes
        ],
        "steps": None
        if b.steps is None
        else {"count": b.steps.count, "p50_ms": _rounded(b.steps.p50_ms), "p99_ms": _rounded(b.steps.p99_ms)},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _student(t: float, freedom: int) -> float:
    """The distribution of Student's t, by its usual normal approximation (good to 0.01 from 3 degrees of freedom on)."""
    z = t * (1 - 1 / (4 * freedom)) / sqrt(1 + t * t / (2 * freedom))
    return 0.5 * (1 + erf(z / sqrt(2)))
