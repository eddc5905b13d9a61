"""The phases of each fault in the log: when it was seen and named, and when the job was back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from unidle.events import types as ev
from unidle.files.drill import Fault
from unidle.view.incidents import Incident, incidents_of
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

EARLY_NS: Final = 50_000_000  # the log's clock and the injector's may differ by this
_EXPECTED: Final[dict[str, tuple[str, ...]]] = {
    "kill": ("exit",),
    "stop": ("hang",),
    "slow": ("slow",),
    "cut": ("cut", "hang", "exit", "node"),  # node: its link went down too often
    "delay": ("slow", "hang", "cut"),
    "rate": ("slow", "cut", "hang"),
    "disk_full": ("storage",),
    "disk_slow": ("storage", "slow", "hang"),
    "corrupt_checkpoint": (),
    "kernel_log": ("gpu", "node", "storage", "exit"),
    "nvml": ("gpu", "node"),
    "controller_kill": (),
    "power_cut": ("exit",),
}
_NAMES: Final = ("exit", "hang", "cut", "slow")
_NO_FAULT: Final = Fault("kill", "rank:0")
_ENDS: Final = ("exit", "hang", "cut")  # what any fault may come to
_ONSET_NS: Final = 2_000_000_000  # an onset is reckoned backwards, and may be too early by so much
_SLOW_ONSET_NS: Final = 5_000_000_000  # it takes some seconds of steps to tell


@dataclass(frozen=True, slots=True)
class Phases:
    """Wall-clock ns of what happened after a fault; None for what did not.

    ``rendezvous``: all ranks of the next attempt were there; ``restored``: they had their state again, where they
    say so; ``first_step``: the first step after the fault; ``caught_up``: a step that was not done before it.
    """

    inject: int | None = None
    signal: int | None = None
    verdict: int | None = None
    taint: int | None = None
    kill: int | None = None
    rendezvous: int | None = None
    restored: int | None = None
    first_step: int | None = None
    caught_up: int | None = None

    def as_dict(self) -> dict[str, int | None]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that happened in ``attempt``, when ``step`` was the last one done. ``inject_ns`` None: it did not.

    ``found``, at ``found_ns``: what unidle itself reported, for kinds of faults that get no verdict in the log.
    """

    fault: Fault
    inject_ns: int | None = None
    attempt: int = 0
    step: int | None = None
    found: str | None = None
    found_ns: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class DrillOutcome:
    """What came of a fault. ``correct`` is None where nothing had to be named: the job was not hurt."""

    fault: Fault
    named: str | None
    correct: bool | None
    ns: Phases
    because: str


def outcomes(
    view: View, job: JobView, told: Sequence[tuple[int, ev.Event]], injected: Sequence[Injected]
) -> list[DrillOutcome]:
    """One for each fault, in their order."""
    found = sorted(incidents_of(view, job), key=lambda one: one.verdict_ns or one.onset_ns)
    times = sorted({one.inject_ns for one in injected if one.inject_ns is not None})
    results = []
    for one in injected:
        if one.inject_ns is None:
            results.append(DrillOutcome(one.fault, None, False, Phases(), one.why))
            continue
        later = [t for t in times if t > one.inject_ns + 2 * EARLY_NS]
        until_ns = min(later, default=view.time_ns + EARLY_NS)
        others = [
            o
            for o in injected
            if o is not one and o.inject_ns is not None and abs(o.inject_ns - one.inject_ns) <= 2 * EARLY_NS
        ]
        mine = _incident(job, one, found, until_ns, others)
        results.append(_outcome(job, told, one, mine, until_ns))
    return results


def misnamed(view: View, job: JobView, injected: Sequence[Injected]) -> list[str]:
    """Whom verdicts named that none of the two faults before them had hurt, each with the reason that was given."""
    begun = sorted((one for one in injected if one.inject_ns is not None), key=lambda one: one.inject_ns or 0)
    found = []
    for incident in incidents_of(view, job):
        if incident.kind not in _NAMES or incident.verdict_ns is None:
            continue
        before = [one for one in begun if (one.inject_ns or 0) - EARLY_NS <= incident.verdict_ns][-2:]
        named = {named_by(one.fault, incident) for one in before} or {named_by(_NO_FAULT, incident)}
        if named != {None} and not any(_is_right(job, one, incident) for one in before):
            found.append(f"{min(filter(None, named))}: {incident.because}")
    return found


def replayed_steps(job: JobView) -> int:
    """Steps that were done more than once."""
    lost, highest = 0, None
    for attempt in job.attempts:
        first, last = attempt.first_step(), attempt.last_step()
        if first is None or last is None:
            continue
        if highest is not None:
            lost += max(highest - first + 1, 0)
        highest = last if highest is None else max(highest, last)
    return lost


def _incident(
    job: JobView,
    one: Injected,
    found: Iterable[Incident],
    until_ns: int,
    others: Sequence[Injected],
) -> Incident | None:
    """The incident that a fault caused, among those that were reported after it and before the next fault.

    What names the target of one of ``others``, which happened at the same time, is not laid to it.
    """
    assert one.inject_ns is not None
    since_ns = one.inject_ns - EARLY_NS
    found = [
        i for i in found if i.onset_ns >= one.inject_ns - (_SLOW_ONSET_NS if i.kind == "slow" else _ONSET_NS)
    ]
    later = [
        i for i in found if i.verdict_ns is not None and since_ns <= i.verdict_ns and i.onset_ns < until_ns
    ]
    candidates = [i for i in later if i.kind in _EXPECTED[one.fault.kind]]
    candidates = candidates or [i for i in later if i.onset_ns >= since_ns and i.kind in _ENDS]
    right = [i for i in candidates if _is_right(job, one, i)]
    left = [i for i in candidates if not any(_is_right(job, other, i) for other in others)]
    return next(iter(right or left), None)


def _is_right(job: JobView, one: Injected, incident: Incident) -> bool:
    return named_by(one.fault, incident) in _right_names(job, one)


def named_by(fault: Fault, incident: Incident) -> str | None:
    """Whom an incident's verdict named, in the form of a fault's target."""
    if incident.link:
        return f"link:{incident.link}"
    if fault.target_kind == "node" and incident.node:
        return f"node:{incident.node}"
    if incident.rank is not None:
        return f"rank:{incident.rank}"
    return f"node:{incident.node}" if incident.node else None


def _right_names(job: JobView, one: Injected) -> set[str]:
    """The target, or its rank or node."""
    fault, names = one.fault, {one.fault.target}
    places = job.attempts[one.attempt - 1].places if 0 < one.attempt <= len(job.attempts) else ()
    if fault.target_kind == "machine":
        names |= {f"node:{place.node}" for place in places} | {f"rank:{place.rank}" for place in places}
    if fault.target_kind == "rank":
        names |= {f"node:{place.node}" for place in places if place.rank == int(fault.name)}
    if fault.target_kind == "node":
        names |= {f"rank:{place.rank}" for place in places if place.node == fault.name}
    if fault.target_kind == "device":
        names.add(f"node:{fault.name.rpartition('/')[0]}")
    if fault.target_kind == "link":
        a, _, b = fault.name.partition("-")
        names.add(f"link:{b}-{a}")
    return names


def _outcome(
    job: JobView, told: Sequence[tuple[int, ev.Event]], one: Injected, incident: Incident | None,
    until_ns: int,
) -> DrillOutcome:  # fmt: skip
    assert one.inject_ns is not None
    since_ns = one.inject_ns - EARLY_NS
    named, because, right = one.found, one.why, _right_names(job, one)
    ns = Phases(one.inject_ns, one.found_ns, one.found_ns)
    if incident is not None:
        named, because = named_by(one.fault, incident), incident.because
        ns = replace(ns, signal=incident.signal_ns, verdict=incident.verdict_ns)
    for time_ns, event in told:
        if not since_ns <= time_ns < until_ns:
            continue
        if ev.KIND_OF[type(event)] == "fault_seen" and one.fault.kind in ("kernel_log", "nvml"):
            if named is None or named not in right:
                named, because, ns = _of_fault(event, time_ns, one, ns)
        elif isinstance(event, ev.HealthSet) and ns.taint is None and _concerns(event, job, one):
            ns = replace(ns, taint=time_ns)
    ns = _recovery(job, one, incident, ns, until_ns)
    hurt = incident is not None or named is not None
    if not hurt and ns.kill is not None:  # for another fault at the same time
        return DrillOutcome(
            one.fault, None, None, ns, "the gang was restarted for another fault before this one was detected"
        )
    must_name = bool(_EXPECTED[one.fault.kind]) and not one.fault.kind.startswith("disk")
    correct = named in right if hurt or must_name else None
    return DrillOutcome(one.fault, named, correct, ns, because if hurt else because or "the job went on")


def _of_fault(event: ev.Event, time_ns: int, one: Injected, ns: Phases) -> tuple[str | None, str, Phases]:
    """A finding about a node or device, as the detectors put it into the log."""
    device, node = str(getattr(event, "device", "")), str(getattr(event, "node", ""))
    reason = getattr(event, "because", None)
    named = f"device:{device}" if device and one.fault.target_kind == "device" else f"node:{node}"
    said = replace(ns, signal=getattr(event, "signal_ns", time_ns), verdict=time_ns)
    return named, str(getattr(reason, "text", "")), said


def _concerns(event: ev.HealthSet, job: JobView, one: Injected) -> bool:
    targets = {name.partition(":")[2] for name in _right_names(job, one)}
    places = job.attempts[one.attempt - 1].places if 0 < one.attempt <= len(job.attempts) else ()
    if one.fault.target_kind == "rank":
        targets |= {slice_ for p in places if p.rank == int(one.fault.name) for slice_ in p.slices}
    return event.target in targets


def _recovery(job: JobView, one: Injected, incident: Incident | None, ns: Phases, until_ns: int) -> Phases:
    """Stamps of the gang's way back: by a new attempt where there was one before the next fault, else in the same."""
    assert one.inject_ns is not None
    number = one.attempt if incident is None or incident.attempt is None else incident.attempt
    attempt = job.attempts[number - 1] if 0 < number <= len(job.attempts) else None
    if (
        attempt is None
        or attempt.stop_ns is None
        or not one.inject_ns - EARLY_NS <= attempt.stop_ns < until_ns
    ):
        step_ns = _first_step_after(job.attempts[one.attempt - 1 :], one.inject_ns, None)
        return replace(
            ns, first_step=step_ns, caught_up=_first_step_after(job.attempts, one.inject_ns, one.step)
        )
    later = job.attempts[number:]
    highest = max((s for a in job.attempts[:number] if (s := a.last_step()) is not None), default=None)
    back = next((a for a in later if a.first_step() is not None), later[-1] if later else None)
    ns = replace(ns, kill=attempt.stop_ns, caught_up=_first_step_after(later, attempt.stop_ns, highest))
    if back is None:
        return ns
    return replace(
        ns,
        rendezvous=max((r.spawn_ns or 0 for r in back.ranks), default=0) or None
        if back.all_spawned
        else None,
        restored=_restored_ns(back),
        first_step=_first_step_after([back], attempt.stop_ns, None),
    )


def _restored_ns(attempt: AttemptView) -> int | None:
    ends = [end for r in attempt.ranks for _, end, leaf in r.spans if leaf == "restore"]
    first = min((r.step_ns[0] for r in attempt.ranks if r.step_ns), default=None)
    ends += [r.ready_ns for r in attempt.ranks if r.ready_ns is not None]
    return max((end for end in ends if first is None or end <= first), default=None)


def _first_step_after(attempts: Sequence[AttemptView], time_ns: int, step: int | None) -> int | None:
    """When a step was first done after a time: one above ``step``, where that is given."""
    times = [
        t for a in attempts for r in a.ranks for t, n in zip(r.step_ns, r.step_n, strict=True)
        if t > time_ns and (step is None or n > step)
    ]  # fmt: skip
    return min(times, default=None)
