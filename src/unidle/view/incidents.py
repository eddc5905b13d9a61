"""Incidents: each disturbance of a job, from its onset to the first step after it, with its cost; and faults of
nodes and devices without an affected job. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from unidle.events.guard import IncidentKind
from unidle.fleet import device_of
from unidle.ledger.money import HOUR_NS, to_micro
from unidle.view.accounts import Durable, durable_points
from unidle.view.jobs import AttemptView, JobView
from unidle.view.records import FaultView, VerdictView
from unidle.view.speeds import width_ppm
from unidle.view.state import View
from unidle.view.watching import incident_kind

_PPM = 1_000_000
_DAY_NS: Final = 86_400_000_000_000
_FAULTS: Final = ("gpu", "storage", "node")
_BLAMED_NS: Final = 300_000_000_000
"""A job that fails so soon after a fault of its devices has failed by it."""
_SAME_NS: Final = 600_000_000_000
"""What is seen so soon of the same part of a node is the same fault."""
_OF_GPU: Final = frozenset({"xid", "gpu_lost", "gpu_init", "ecc", "remap", "amdgpu"})
"""Kinds in which the kernel log and the driver report one fault of a GPU."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident of one attempt; of no job, where a fault hit none. Times in ns on the log's clock, None for what did not happen (yet).

    ``signal_ns``: the first sign of it that was seen; ``verdict_ns``: when it was known what it is;
    ``resumed_ns``: when the job was past a first step again. ``device_ns``: device time that it cost, work
    that was lost included; ``cost_micro``: that in millionths of the fleet's currency, where there is a price.
    ``day_ns`` and ``day_micro``: what one that continues costs in a day; 0 and None for one that does not.
    """

    job: str | None
    attempt: int | None
    kind: IncidentKind
    rank: int | None
    node: str
    onset_ns: int
    signal_ns: int | None
    verdict_ns: int | None
    resumed_ns: int | None
    lost_steps: int
    device_ns: int
    cost_micro: int | None
    because: str
    device: str = ""
    link: str = ""  # of the nodes at its ends, where it is laid on that
    day_ns: int = 0
    day_micro: int | None = None

    @property
    def lasts(self) -> bool:
        """Whether it continues and costs more each day."""
        return self.day_ns > 0


def incidents(view: View) -> list[Incident]:
    """All incidents of all jobs, and faults that hit no job, in order of their onset."""
    found = [one for job in view.jobs.values() for one in incidents_of(view, job)]
    found += [_of_fault(fault) for fault in _first_of_each(view) if not fault.jobs]
    return sorted(found, key=lambda one: (one.onset_ns, one.job or "", one.attempt or 0))


def _first_of_each(view: View) -> Iterator[FaultView]:
    """Each fault once: what is seen of the same part of a node shortly after, such as a further remedy that the driver
    requests, is the same one."""
    last: dict[tuple[str, str, str], int] = {}
    for fault in view.faults:
        hardware = fault.device or str(fault.because.figures.get("hardware", ""))
        part = fault.node, hardware, "gpu" if fault.kind in _OF_GPU else fault.kind
        before_ns = last.get(part)
        last[part] = fault.at_ns
        if (
            before_ns is None
            or fault.at_ns - before_ns > _SAME_NS
            or view.care.returned.get(fault.node, 0) > before_ns
        ):
            yield fault


def _first_verdicts(attempt: AttemptView) -> Iterator[VerdictView]:
    """The verdicts on an attempt, each fault of a GPU once."""
    last: dict[tuple[str, str], int] = {}
    for verdict in attempt.verdicts:
        hardware = str(verdict.because.figures.get("hardware", ""))
        if verdict.kind != "gpu" or not hardware or verdict.because.code not in _OF_GPU:
            yield verdict
            continue
        before_ns = last.get((verdict.node, hardware))
        last[verdict.node, hardware] = verdict.at_ns
        if before_ns is None or verdict.at_ns - before_ns > _SAME_NS:
            yield verdict


def _of_fault(fault: FaultView) -> Incident:
    """The incident of a fault that hit no job: nothing had to be resumed."""
    return Incident(
        None, None, incident_kind(fault.kind), None, fault.node, fault.onset_ns, fault.signal_ns, fault.at_ns, None, 0, 0, 0,
        fault.because.text, fault.device,
    )  # fmt: skip


def incidents_of(view: View, job: JobView) -> Iterator[Incident]:
    """The incidents of one job, attempt by attempt."""
    if not any(a.verdicts or a.bad or any(r.failed for r in a.ranks) for a in job.attempts):
        return
    for attempt, durable in zip(job.attempts, durable_points(job), strict=True):
        after = job.attempts[attempt.number :]
        for verdict in _first_verdicts(attempt):
            yield _of_verdict(view, job, attempt, after, durable, verdict)
        for bad in attempt.bad:
            yield Incident(
                job.id, attempt.number, "storage", None, "", bad.at_ns, bad.at_ns, bad.at_ns, _resumed_ns([attempt, *after]), 0, 0,
                None, bad.because.text,
            )  # fmt: skip
        if (one := _of_exit(view, job, attempt, after, durable)) is not None:
            yield one


def _of_verdict(
    view: View,
    job: JobView,
    attempt: AttemptView,
    after: Sequence[AttemptView],
    durable: Durable,
    said: VerdictView,
) -> Incident:
    hung = attempt.stop is not None and attempt.stop.why == "hung"
    ended = said.over_ns is None and (said is _blamed(attempt) or (hung and said.kind not in _FAULTS))
    resumed_ns = _resumed_ns(after) if ended else said.over_ns
    lost = _lost(view, attempt, durable, said.onset_ns) if ended else (0, 0)
    until_ns = (
        (_paid_ns(after, resumed_ns) if ended else resumed_ns)
        or attempt.ended_ns
        or job.ended_ns
        or view.time_ns
    )
    if said.kind in _FAULTS and not ended:
        until_ns = said.over_ns or said.onset_ns  # the job went on
    share_ppm = int(
        float(said.because.figures.get("share", 1.0)) * _PPM
    )  # a slow rank costs a part of the others' time
    device_ns = (
        lost[1] + max(until_ns - said.onset_ns, 0) * width_ppm(view.book, attempt) // _PPM * share_ppm // _PPM
    )
    lasts = said.kind in ("slow", "hang", "cut") and said.over_ns is None and attempt.live
    day_ns = width_ppm(view.book, attempt) * _DAY_NS // _PPM * share_ppm // _PPM if lasts else 0
    return Incident(
        job.id, attempt.number, said.kind, said.rank, said.node, said.onset_ns, said.signal_ns, said.at_ns, resumed_ns,
        lost[0], device_ns, _micro(view, job, attempt, device_ns), said.because.text, link=str(said.because.figures.get("link", "")),
        day_ns=day_ns, day_micro=_micro(view, job, attempt, day_ns) if lasts else None,
    )  # fmt: skip


def _of_exit(
    view: View, job: JobView, attempt: AttemptView, after: Sequence[AttemptView], durable: Durable
) -> Incident | None:
    """The incident of a rank that failed by itself; None where the attempt had none."""
    stop = attempt.stop
    if (stop is not None and stop.why != "rank_failed") or _blamed(attempt) is not None:
        return None
    ignored = job.spec.ignored_ranks
    failed = [(r.end_ns or 0, k) for k, r in enumerate(attempt.ranks) if r.failed and k not in ignored]
    if not failed:
        return None
    rank = attempt.culprit if attempt.culprit is not None else min(failed)[1]
    onset_ns = attempt.ranks[rank].end_ns or min(failed)[0]
    resumed_ns = _resumed_ns(after)
    steps, lost_ns = _lost(view, attempt, durable, onset_ns)
    until_ns = _paid_ns(after, resumed_ns) or job.ended_ns or view.time_ns
    device_ns = lost_ns + max(until_ns - onset_ns, 0) * width_ppm(view.book, attempt) // _PPM
    because = attempt.why or (stop.because if stop is not None else None)
    return Incident(
        job.id, attempt.number, "exit", rank, attempt.places[rank].node, onset_ns, onset_ns,
        attempt.stop_ns if stop is not None else attempt.ended_ns, resumed_ns, steps, device_ns,
        _micro(view, job, attempt, device_ns), because.text if because is not None else f"rank {rank} failed",
    )  # fmt: skip


def _blamed(attempt: AttemptView) -> VerdictView | None:
    """The fault of its devices or node that the attempt failed by; None where it did not."""
    if attempt.ended_ns is None or attempt.outcome != "failed":
        return None
    if attempt.stop is not None and attempt.stop.why != "rank_failed":
        return None
    ends = [r.end_ns for r in attempt.ranks if r.failed and r.end_ns is not None]
    end_ns = min(ends, default=attempt.ended_ns)
    near = (
        v
        for v in _first_verdicts(attempt)
        if v.kind in _FAULTS and v.over_ns is None and v.onset_ns <= v.at_ns <= attempt.ended_ns
        and end_ns - v.onset_ns <= _BLAMED_NS
    )  # fmt: skip
    return next(near, None)


def _resumed_ns(after: Sequence[AttemptView]) -> int | None:
    """When a later attempt was past its first step, or, for a job that shows none, when it was all there."""
    for attempt in after:
        first = min((r.step_ns[0] for r in attempt.ranks if r.step_ns), default=None)
        if first is None and attempt.outcome == "succeeded":
            first = max((r.spawn_ns for r in attempt.ranks if r.spawn_ns is not None), default=None)
        if first is not None:
            return first
    return None


def _paid_ns(after: Sequence[AttemptView], resumed_ns: int | None) -> int | None:
    """Until when time is laid to an incident: a next attempt that ended before its first step is one of its own."""
    if after and after[0].ended_ns is not None and (resumed_ns is None or after[0].ended_ns < resumed_ns):
        return after[0].ended_ns
    return resumed_ns


def _lost(view: View, attempt: AttemptView, durable: Durable, onset_ns: int) -> tuple[int, int]:
    """Steps that have to be done again, and the device time that they took."""
    last, first = attempt.last_step(), attempt.first_step()
    if last is None or first is None:
        return 0, 0
    kept = first - 1 if durable.step is None else durable.step
    begun_ns = attempt.begun_ns or attempt.placed_ns
    since_ns = begun_ns if durable.at_ns is None else max(durable.at_ns, begun_ns)
    lost_ns = max(onset_ns - since_ns, 0) * width_ppm(view.book, attempt) // _PPM
    return max(last - kept, 0), lost_ns if last > kept else 0


def _micro(view: View, job: JobView, attempt: AttemptView, device_ns: int) -> int | None:
    price = job.spec.price_per_device_hour
    if price is None:
        known = view.fleet.prices_per_device_hour
        names = {device_of(s) for place in attempt.places for s in place.slices}
        models = {d.model for d in view.fleet.devices() if d.id in names}
        prices = [known[m] for m in models if m in known]
        if not prices or len(prices) < len(models):
            return None
        price = sum(prices) / len(prices)
    return to_micro(price) * device_ns // HOUR_NS
