"""Observations of work that shares a device, kept as the log is folded: the table of the chooser learns from it.
Pure.

While a device is in parts, the spans of work of those who left it are remembered; when an attempt ends, its steps
alone and next to one other are compared (``share.colocation``). Loads go by the names of jobs.
"""

from __future__ import annotations

from typing import Final

from unidle.fleet import Device, device_of
from unidle.share.colocation import PairedSteps, Work
from unidle.view.jobs import AttemptView, JobView
from unidle.view.records import Stay
from unidle.view.state import View

PAIRS_KEPT: Final = 4096
STAYS_KEPT: Final = 256  # on one device


def left(view: View, job: JobView, attempt: AttemptView) -> None:
    """The attempt has ended: learn from its steps on devices that it had parts of."""
    devices = dict.fromkeys(device_of(s) for place in attempt.places for s in place.slices)
    for device_id in devices:
        device = view.cuttable(device_id)
        if device is None or device.cut is None:
            continue
        _learn(view, device, job, attempt)
        stays = view.stays.setdefault(device_id, [])
        stays.append(Stay(job.id, job.spec.name, *_span(attempt, view.time_ns)))
        del stays[:-STAYS_KEPT]


def _learn(view: View, device: Device, job: JobView, attempt: AttemptView) -> None:
    assert device.cut is not None
    steps = _steps(attempt)
    if not steps:
        return
    load_of = {job.id: job.spec.name}
    tenants = {job.id: Work([_span(attempt, view.time_ns)], steps)}
    for stay in view.stays.get(device.id, ()):
        if stay.job != job.id:
            load_of[stay.job] = stay.load
            tenants.setdefault(stay.job, Work()).work.append((stay.start_ns, stay.end_ns))
    for part in device.cut.parts:
        other = view.jobs.open.get(part.job)
        if other is not None and other is not job and other.attempts:
            load_of[other.id] = other.spec.name
            tenants.setdefault(other.id, Work()).work.append(_span(other.attempts[-1], view.time_ns))
    pairs = PairedSteps(load_of)
    pairs.add(tenants, device.cut.mode, [job.id])
    for seen in pairs.observations():
        if seen.alone_ns > 0 and seen.shared_ns > 0:
            key = (seen.mode, seen.load, seen.other)
            before = view.pairs.pop(key, (0, 0))
            view.pairs[key] = (before[0] + seen.shared_ns * 1_000_000 // seen.alone_ns, before[1] + 1)
    while len(view.pairs) > PAIRS_KEPT:  # names that are not seen again make way
        del view.pairs[next(iter(view.pairs))]


def _steps(attempt: AttemptView) -> dict[tuple[int, int], int]:
    """Steps of the rank that reports them: by the time between one and the next."""
    lead = next((rank for rank in attempt.ranks if rank.step_n), None)
    if lead is None:
        return {}
    times, numbers = lead.step_ns, lead.step_n
    return {(times[k - 1], times[k]): numbers[k] for k in range(1, len(times)) if times[k] > times[k - 1]}


def _span(attempt: AttemptView, now_ns: int) -> tuple[int, int]:
    """From its first step to its last if it reported any, else all of its life."""
    told = [(rank.step_ns[0], rank.step_ns[-1]) for rank in attempt.ranks if rank.step_ns]
    end_ns = attempt.ended_ns if attempt.ended_ns is not None else now_ns
    if not told:
        return attempt.placed_ns, end_ns
    return min(first for first, _ in told), (max(last for _, last in told) if attempt.ended_ns else end_ns)
