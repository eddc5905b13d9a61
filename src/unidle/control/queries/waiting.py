"""What a job waits for: what is in its way, what would help, and when it starts. Pure."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal

from unidle.control.inbox import NOT_TAKEN_UP
from unidle.control.queries.dry_run import DryRun, next_decision
from unidle.jobs import NEVER, NEVER_BY_QUEUE, JobSpec, Reason
from unidle.view.jobs import JobView, in_full
from unidle.view.state import View
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.fleet import Barred, Fleet
    from unidle.place.network.constraint import Barrier

Plain = dict[str, Any]

_NEXT: Final = Reason("fits", "there is room for the job: it starts with the next decision")
_ROOM: Final = Reason("fits", "there is room for the job")
"""The same, where no controller runs to decide."""
_MOST_OUT: Final = 3  # nodes and devices out of service that are named


def waiting(view: View, job: JobView) -> Plain:
    """What a job waits for, what would help, and when it starts as far as that is known."""
    verdict = job.verdict
    answer = DryRun(None, NOT_TAKEN_UP) if verdict is NOT_TAKEN_UP else next_decision(view, job)
    now = answer.because if answer.place is None else _NEXT if view.running else _ROOM
    foretold = next((p.value_ns for p in reversed(job.predictions) if p.what == "start"), 0)
    still = foretold if foretold >= view.time_ns and now.code not in NEVER else None
    planned_ns = now.figures.get("planned_start_ns", still)
    expected_ns = planned_ns if isinstance(planned_ns, int) and not _assumed(view, job, planned_ns) else None
    return {
        "because": (verdict or job.retry or now).text,
        "now": {"code": now.code, "text": now.text, **now.figures},
        "stops": [stop.job for stop in answer.stops],
        "stops_whose": [in_full(view.jobs[stop.job]) for stop in answer.stops],
        "in_the_way": [] if answer.place is not None else in_the_way(view, job.spec, now),
        "ahead": _ahead(view, job),
        "not_before_ns": job.not_before_ns or None,
        "expected_start_ns": expected_ns,
        "start_unknown": None if expected_ns is not None else _start_unknown(view, job, now),
    }


def _assumed(view: View, job: JobView, start_ns: int) -> bool:
    """Whether a planned start rests on the run time that a plan assumes for jobs of which none is known."""
    from unidle.place.model import Backfill

    assumed_ns = Backfill().otherwise_ns
    runs = (view.jobs.open[name].attempts[-1].placed_ns for name in _without_run_time(view, "holding", job))
    if any(placed_ns + assumed_ns <= start_ns for placed_ns in runs):
        return True
    return view.time_ns + assumed_ns <= start_ns and bool(_without_run_time(view, "ahead", job))


def _without_run_time(view: View, which: Literal["holding", "ahead"], job: JobView) -> list[str]:
    """Jobs that hold devices, or wait before this one, and of which no run time is known."""
    if which == "holding":
        others = [view.jobs.open[name] for name in sorted(view.live)]
        return [o.id for o in others if o.spec.needs_devices and o.run_time_ns is None]
    mine = (-job.spec.priority, job.order)
    return [
        name
        for shape, line in view.waiting.items()
        if shape.devices_per_rank > 0
        for _, _, name in line
        if not (other := view.jobs.rest_of(name)).timed
        and (-other.priority, other.order) < mine
        and other.code not in NEVER
    ]


def _start_unknown(view: View, job: JobView, now: Reason) -> str | None:
    """What is missing to know when a waiting job starts; None where it starts at once or never."""
    if now is _NEXT or now.code in NEVER:
        return None
    if now is NOT_TAKEN_UP or not view.running:
        return "no controller runs on this store"
    if job.not_before_ns > view.time_ns:
        return None  # the reason says when it is tried again
    if job.spec.is_filler:
        return "a filler starts when no other job uses the devices that it needs, which is not planned ahead"
    if not job.spec.needs_devices:
        return "the job waits for cores and memory, which are not planned ahead"
    ways: tuple[tuple[Literal["holding", "ahead"], str, str], ...] = (
        ("holding", "runs", "run"), ("ahead", "waits before it", "wait before it"),
    )  # fmt: skip
    for which, one, many in ways:
        names = _without_run_time(view, which, job)
        if names:
            more = f" and {counted(len(names) - 3, 'more job')}" if len(names) > 3 else ""
            alone = len(names) == 1
            return (
                f"the run time of {', '.join(names[:3])}{more} is unknown, and {'it' if alone else 'they'} {one if alone else many}; "
                f"set estimate_s in the job {'file' if alone else 'files'}, or finish a job of the same name"
            )
    if now.code in ("quota", "behind"):
        return "the job waits for quota, not for devices; the return of quota is not planned ahead"
    return "the predicted ends of running jobs do not make room for the job"


def _ahead(view: View, job: JobView) -> int:
    """How many jobs come before it in its queue. Those that can never start do not count: they delay no job."""
    from unidle.place.fillers import order_of
    from unidle.place.policy import DEFAULT

    rest_of = view.jobs.rest_of
    if job.spec.is_filler:
        others = (view.jobs.open[name] for name in view.fillers.waiting)
        return sum(order_of(other) < order_of(job) for other in others)
    if view.policy in ("", DEFAULT) and not _all_in_turn(view):
        from unidle.place.snapshot import snapshot_of

        books = snapshot_of(view, view.time_ns)
        demand = books.waiting.jobs.get(job.id)
        line = () if demand is None else books.waiting.of(books.tree.leaf(demand.queue), view.time_ns)
        return sum(1 for _ in takewhile(lambda other: other.job != job.id, line))
    if not view.fleet.queues or view.policy not in ("", DEFAULT):
        mine = (-job.spec.priority, job.order, "")
        before = (place[2] for line in view.waiting.values() for place in line if place < mine)
        return sum(rest_of(name).code not in NEVER for name in before)
    known = ((name, rest_of(name)) for line in view.waiting.values() for _, _, name in line)
    from unidle.place.model import Backfill, Demand, in_order

    demands = [
        Demand(name, other.queue, other.level, 0, 0, (), other.since_ns, priority=other.priority)
        for name, other in known
        if other.queue == job.spec.queue and (name == job.id or other.code not in NEVER)
    ]
    return [demand.job for demand in in_order(demands, view.time_ns, Backfill())].index(job.id)


def _all_in_turn(view: View) -> bool:
    """Whether all queues order their jobs by submission."""
    orders = [queue.order or view.fleet.order.by for queue in view.fleet.queues]
    return all(order == "fifo" for order in orders or [view.fleet.order.by])


def in_the_way(view: View, spec: JobSpec, now: Reason) -> list[Plain]:
    """Each thing that keeps a gang from starting now, and what would help: its queue's quota first, then the network.

    ``now`` is the reason of the next decision.
    """
    from unidle.place.explain import GangRefusal
    from unidle.place.scheduler import Scheduler

    if now.code in NEVER_BY_QUEUE:
        return []
    many = cpu_devices_for(spec, view.fleet) if now.code == "never_fits" else None
    if many is not None:
        helps = f"`unidle up --cpu-devices {many}` on this store"
        has = len(view.fleet.devices())
        return [{
            "constraint": None, "text": now.text, "domains": 1, "fitting": 0, "largest": has, "needs": many,
            "unblock": helps,
        }]  # fmt: skip
    found = [_quota_line(now)] if now.code in ("quota", "behind") and "bound" in now.figures else []
    answer = Scheduler().try_one(view, spec)
    if isinstance(answer, GangRefusal):
        found += [barrier_line(barrier) for barrier in answer.barriers]
    return found + _out_of_service(view, spec) + _hosts_taken(view, spec)


def _out_of_service(view: View, spec: JobSpec) -> list[Plain]:
    """Nodes and devices that a gang could use and that take no job, in the form of :func:`barrier_line`."""
    barred = view.barred
    if not barred:
        return []
    lines = []
    for node in view.fleet.nodes:
        usable = [d.id for d in node.devices if spec.needs_devices and spec.device in ("any", d.kind)]
        if usable or not spec.needs_devices:
            targets = [target for target in (node.id, *usable) if target in barred]
            lines += [_barred_line(view, target, barred[target], len(usable)) for target in targets]
    if len(lines) > _MOST_OUT:
        text = f"nodes and devices out of service: {len(lines) - _MOST_OUT} more"
        lines[_MOST_OUT:] = [lines[_MOST_OUT] | {"text": text, "unblock": f"{text}: `unidle guard nodes`"}]
    return lines


def _barred_line(view: View, target: str, health: Barred, devices: int) -> Plain:
    if health == "taken":
        node = view.fleet.nodes[view.node_at(target) or 0].id
        because = view.taken[node].because.text if node in view.taken else ""
        why, helps = f"{target} is used by others: {because}", "wait for them, or name other devices"
        return _line(why, helps, devices)
    here, cordon = view.care.targets.get(target), view.care.cordons.get(target)
    if here is not None:
        why = f"{target} is out of service ({here.state}): {here.cause.text}"
        helps = "wait for its check"
        if here.state == "out":
            helps = f"after the repair, `unidle guard return {target}`"
    elif cordon is not None:
        why, helps = f"{target} is cordoned by {cordon.by}", f"`unidle guard uncordon {target}`"
    else:
        why, helps = f"{target} takes no new job ({health})", "`unidle guard nodes` has the reason"
    return _line(why, helps, devices)


def _hosts_taken(view: View, spec: JobSpec) -> list[Plain]:
    """Nodes of which others use cores or memory, where the job requests such."""
    asked, lines = spec.requests, []
    for node, taken in sorted(view.taken.items()) if asked.cpus or asked.memory_bytes else ():
        if taken.cpu_milli or taken.memory_bytes:
            amount = f"{taken.cpu_milli / 1000:g} cores and {taken.memory_bytes / 2**30:.1f} GiB of {node}"
            why = f"{amount} are used by others: {taken.because.text}"
            lines.append(_line(why, "wait for them, or ask for less", 0))
    return lines[:_MOST_OUT]


def _line(why: str, helps: str, devices: int) -> Plain:
    return {
        "constraint": None, "text": why, "domains": 1, "fitting": 0, "largest": 0, "needs": devices,
        "unblock": f"{why}; {helps}",
    }  # fmt: skip


def cpu_devices_for(spec: JobSpec, fleet: Fleet) -> int | None:
    """How many CPU devices a machine without a fleet file would need for a job; None where more would not help."""
    devices = fleet.devices()
    found = fleet.source.startswith("discovered") and all(device.kind == "cpu" for device in devices)
    if not found or spec.device == "gpu":
        return None
    least = spec.at_size(spec.sizes[-1]).devices
    return least if len(devices) < least else None


def _quota_line(now: Reason) -> Plain:
    """The quota that is in the way, in the form of :func:`barrier_line`; amounts in devices or cores."""
    queue, resource = now.figures["queue"], now.figures["resource"]
    bound, used, asked = (float(now.figures[name]) / 1000 for name in ("bound", "used", "asked"))
    helps = f"{used + asked - bound:g} {resource} less in use by {queue}, or a limit that is as much higher"
    return {
        "constraint": f"quota of {queue}", "text": now.text, "domains": 1, "fitting": 0,
        "largest": max(bound - used, 0.0), "needs": asked, "unblock": helps,
    }  # fmt: skip


def barrier_line(barrier: Barrier) -> Plain:
    """One thing in the way."""
    return {
        "constraint": barrier.constraint.text() if barrier.constraint else None, "text": barrier.text(),
        "domains": barrier.domains, "fitting": barrier.fitting, "largest": barrier.largest, "needs": barrier.needs,
        "unblock": barrier.unblock,
    }  # fmt: skip
