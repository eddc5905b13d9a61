"""Holders that do nothing: found in the ledger's rows, told, and released by policy.

An attempt is *quiet* since the last sign of work on any of its slices: the end of a step that was seen, of
serving or filling that was measured, of a span that keeps the device for a reason (saving, evaluating, ...),
or utilisation above the observer's threshold. Time that the ledger only infers to be a step, because nothing
else is known, is no sign.

Quiet for ``after_ns`` earns a notice; a sign of work withdraws it; ``notice_ns`` after it the attempt is to
be released. That needs evidence: steps that stopped, or utilisation that was watched. A job that never
showed a step and whose utilisation no one measured may well be at work, so it is told and left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from unidle.jobs import Reason
from unidle.ledger.columns import HOW_CODE, LEAVES, RowColumns
from unidle.ledger.taxonomy import GROUP_OF

MINUTE_NS: Final = 60_000_000_000
_HOUR_NS: Final = 60 * MINUTE_NS
_WORK_GROUPS: Final = frozenset({"step", "serve", "fill"})

Evidence = Literal["utilisation", "steps", "none"]


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When a quiet holder is told and released. ``start_ns`` is for those that have shown no work yet."""

    after_ns: int = 30 * MINUTE_NS
    start_ns: int = 60 * MINUTE_NS
    notice_ns: int = 15 * MINUTE_NS
    release: bool = True
    busy_leaves: frozenset[str] = frozenset(
        {"preflight", "restore", "compile", "checkpoint", "evaluation", "preempting"}
    )
    exempt_queues: frozenset[str] = frozenset()


class Utilisation(NamedTuple):
    """What was measured of one slice: when last at all, and when last above the threshold (-1: never)."""

    seen_ns: int
    busy_ns: int


class Attempt(NamedTuple):
    """An attempt that holds slices now."""

    job: str
    number: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A quiet attempt: since when, on which slices, and how much of devices that is."""

    attempt: Attempt
    queue: str
    since_ns: int
    slices: tuple[str, ...]
    share_ppm: int
    evidence: Evidence
    worked: bool  # it has shown work before


@dataclass(frozen=True, slots=True)
class IdleStep:
    """One decision about one holder."""

    attempt: Attempt
    because: Reason


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """Whom to tell, whose notice is void, whom to release; ``again_ns`` is when to look again, if ever."""

    tell: tuple[IdleStep, ...] = ()
    withdraw: tuple[IdleStep, ...] = ()
    release: tuple[IdleStep, ...] = ()
    again_ns: int | None = None


def decide_idle(
    rows: RowColumns,
    live: Mapping[str, int],
    told: Mapping[Attempt, int],
    now_ns: int,
    policy: IdlePolicy,
    utilisation: Mapping[str, Utilisation] | None = None,
) -> IdlePlan:
    """What to do about quiet holders at ``now_ns``.

    ``rows`` are rows that stand, at least those of the live attempts; ``live`` the attempt of each job that
    holds slices; ``told`` when each notice that still stands was given; ``utilisation`` what was measured, by
    slice. Each attempt gets at most one step.
    """
    tell: list[IdleStep] = []
    withdraw: list[IdleStep] = []
    release: list[IdleStep] = []
    times: list[int] = []
    for holder in quiet_holders(rows, live, policy, utilisation or {}):
        if holder.queue in policy.exempt_queues:
            continue
        at_ns = told.get(holder.attempt)
        if at_ns is not None and holder.since_ns > at_ns:
            withdraw.append(_step(holder, now_ns, "idle_over", "works again: the notice is void"))
            at_ns = None
        elif at_ns is None:
            due_ns = holder.since_ns + (policy.after_ns if holder.worked else policy.start_ns)
            if due_ns <= now_ns:
                tell.append(_step(holder, now_ns, "idle_notice", _warning(holder, policy)))
                at_ns = now_ns
            else:
                times.append(due_ns)
        elif _may_release(holder, policy) and at_ns + policy.notice_ns <= now_ns:
            release.append(_step(holder, now_ns, "idle_released", "released by policy after a notice"))
            continue
        if at_ns is not None and _may_release(holder, policy):
            times.append(at_ns + policy.notice_ns)
    return IdlePlan(tuple(tell), tuple(withdraw), tuple(release), min(times, default=None))


def quiet_holders(
    rows: RowColumns, live: Mapping[str, int], policy: IdlePolicy, utilisation: Mapping[str, Utilisation]
) -> list[Holder]:
    """Every live attempt with the time of its last sign of work, in the order of the job table."""
    codes = {k: live[job.id] for k, job in enumerate(rows.jobs) if job.id in live}
    number = np.zeros(len(rows.jobs), np.int64)
    for code, attempt in codes.items():
        number[code] = attempt
    mine = (rows["job"] > 0) & (rows["attempt"] == number[rows["job"]]) & (rows["sign"] > 0)
    held = rows.take(mine)
    first = np.full(len(rows.jobs), np.iinfo(np.int64).max)
    np.minimum.at(first, held["job"], held["start_ns"])
    last = np.full(len(rows.jobs), -1, np.int64)
    work = held.take(_signs(held, policy))
    np.maximum.at(last, work["job"], work["end_ns"])
    pairs = np.unique(np.stack([held["job"].astype(np.int64), held["slice"].astype(np.int64)]), axis=1)
    by_job: dict[int, list[int]] = {}
    for job, piece in zip(*pairs.tolist(), strict=True):
        by_job.setdefault(job, []).append(piece)
    return [
        _holder(rows, code, by_job[code], int(first[code]), int(last[code]), codes[code], utilisation)
        for code in codes
        if code in by_job
    ]


def _signs(held: RowColumns, policy: IdlePolicy) -> npt.NDArray[np.bool_]:
    """Rows that show work: seen steps, measured service, and what keeps a device for a reason."""
    work = np.array([GROUP_OF[leaf] in _WORK_GROUPS for leaf in LEAVES])
    busy = np.array([leaf in policy.busy_leaves for leaf in LEAVES])
    seen = (held["step"] >= 0) | (held["how"] == HOW_CODE["measured"])
    return np.asarray(busy[held["leaf"]] | (work[held["leaf"]] & seen), np.bool_)


def _holder(
    rows: RowColumns,
    code: int,
    pieces: list[int],
    first_ns: int,
    last_ns: int,
    number: int,
    utilisation: Mapping[str, Utilisation],
) -> Holder:
    names = tuple(rows.slices.names.ids[k] for k in pieces)
    watched = [u for name in names if (u := utilisation.get(name)) is not None]
    busy_ns = max((u.busy_ns for u in watched), default=-1)
    evidence: Evidence = "none"
    if len(watched) == len(names):
        evidence = "utilisation"
    elif last_ns >= 0:
        evidence = "steps"
    return Holder(
        Attempt(rows.jobs[code].id, number),
        rows.jobs[code].queue,
        max(first_ns, last_ns, busy_ns),
        names,
        int(rows.slices.share_ppm[pieces].sum()),
        evidence,
        last_ns >= 0 or busy_ns >= 0,
    )


def _may_release(holder: Holder, policy: IdlePolicy) -> bool:
    return policy.release and holder.evidence != "none"


def _warning(holder: Holder, policy: IdlePolicy) -> str:
    if _may_release(holder, policy):
        return f"will be released in {policy.notice_ns / MINUTE_NS:g} min unless it works again"
    if policy.release:
        return "is not released: no step was ever seen and no utilisation measured, so it may be at work"
    return "is not released: the policy only tells"


def _step(holder: Holder, now_ns: int, code: str, what: str) -> IdleStep:
    quiet_ns = now_ns - holder.since_ns
    devices = holder.share_ppm / 1_000_000
    text = (
        f"holds {devices:g} devices, {quiet_ns / MINUTE_NS:.0f} min without a step"
        + (" or utilisation" if holder.evidence == "utilisation" else "")
        + f" ({quiet_ns / _HOUR_NS * devices:.2f} device-hours): {what}"
    )
    figures: dict[str, int | float | str] = {
        "quiet_ns": quiet_ns,
        "slices": len(holder.slices),
        "share_ppm": holder.share_ppm,
        "evidence": holder.evidence,
    }
    return IdleStep(holder.attempt, Reason(code, text, figures))
