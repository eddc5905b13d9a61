"""What failures cost a fleet: rates by component and model, times between failures by job size, lemons, money. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from unidle.guard.fault_kinds import component_of
from unidle.guard.rates import EventRate, at_least

DAY_NS: Final = 86_400 * 1_000_000_000
HOUR_NS: Final = 3600 * 1_000_000_000
YEAR_DAYS: Final = 365.25
NEAR_NS: Final = 600 * 1_000_000_000
"""What hurts a job so soon before its node is taken out, or while it is out, is the same event."""
LEMON: Final = 0.01
"""A node is a lemon where chance alone would give any node of the fleet as many events less often than this."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A node, or ``device`` of it, failed; ``planned``: it was maintenance, not a failure. Times in ns.

    ``kind``: a key of :data:`unidle.guard.fault_kinds.CLASSES`, where it is known. Without ``out`` it stayed in service.
    """

    node: str
    model: str
    component: str
    start_ns: int
    end_ns: int
    planned: bool = False
    kind: str = ""
    device: str = ""
    out: bool = True


@dataclass(frozen=True, slots=True)
class Exposure:
    """How long a node was seen, and how many devices of which model it has."""

    node: str
    model: str
    devices: int
    ns: int


@dataclass(frozen=True, slots=True)
class Harm:
    """An incident of a job: see ``unidle.view.incidents``. ``stopped``: it ended the attempt; ``cause``: what kind of failure did.

    ``fault``: the name of what failed (:data:`unidle.guard.fault_kinds.CLASSES`), where the attempt failed by itself.
    """

    job: str
    kind: str
    node: str
    onset_ns: int
    lost_steps: int
    device_ns: int
    cost_micro: int | None
    stopped: bool
    cause: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One attempt of a job on ``devices`` devices ran for ``ns``; ``hurt``: an incident ended it."""

    job: str
    devices: int
    ns: int
    hurt: bool


class FaultLabel(NamedTuple):
    """A fault that is known to have been there, in ns."""

    node: str
    start_ns: int
    end_ns: int


ENOUGH_NODE_DAYS: Final = 30.0
ENOUGH_DEVICE_YEARS: Final = 1.0
"""A rate is reported from so much observed time on: from less it is an extrapolation, and only counts are facts."""


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """Failures of one component on nodes of one model. ``rate`` is per node-day, ``yearly`` per device and year (AFR).

    ``out`` of them took something out of service, for ``down_ns`` in all.
    """

    component: str
    model: str
    rate: EventRate
    yearly: EventRate
    down_ns: int
    out: int = 0

    @property
    def node_yearly(self) -> EventRate:
        """Per node and year."""
        return self.rate.per(YEAR_DAYS)


@dataclass(frozen=True, slots=True)
class FaultRow:
    """Failures of one kind (:data:`unidle.guard.fault_kinds.CLASSES`). ``rate`` is per node-day.

    ``jobs``: attempts that failed by themselves, where no fault of their nodes explains it; the others are of nodes.
    """

    fault: str
    component: str
    rate: EventRate
    jobs: int


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Jobs of ``least`` to ``most`` devices. ``rate`` is interruptions per hour of the gang: its inverse is the MTBF.

    ``median_ns`` and ``longest_ns`` are of stretches without an interruption: the stable training period.
    """

    least: int
    most: int
    jobs: int
    rate: EventRate
    median_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class KindRow:
    """What incidents of one kind cost; ``unpriced`` of them had no price, and are not in ``cost_micro``."""

    kind: str
    incidents: int
    lost_steps: int
    device_ns: int
    cost_micro: int
    unpriced: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node's events, their ``share`` of all, and how likely chance alone gives it as many. ``rate`` is per node-day."""

    node: str
    events: int
    share: float
    chance: float
    lemon: bool
    rate: EventRate


@dataclass(frozen=True, slots=True)
class Judged:
    """Removals against labels: ``false`` per node-day, and the part of the labels that was noticed."""

    removals: int
    false: EventRate
    labels: int
    noticed: int

    @property
    def recall(self) -> float | None:
        return self.noticed / self.labels if self.labels else None


@dataclass(frozen=True, slots=True)
class Accounts:
    """All of it for one window. ``removals`` are times in which a node was out unplanned, whole or in part."""

    node_days: float
    device_days: float
    components: tuple[ComponentRow, ...]
    sizes: tuple[SizeRow, ...]
    kinds: tuple[KindRow, ...]
    nodes: tuple[NodeRow, ...]  # the worst first; only those with an event
    removals: EventRate
    judged: Judged | None
    causes: tuple[KindRow, ...] = ()  # of the incidents that ended an attempt, by the kind of failure
    faults: tuple[FaultRow, ...] = ()


def accounts(
    outages: Sequence[Outage], seen: Sequence[Exposure], harms: Sequence[Harm], stretches: Sequence[Stretch],
    labels: Sequence[FaultLabel] | None = None,
) -> Accounts:  # fmt: skip
    """The accounts of what was seen in one window: all given is of that window."""
    node_days = sum(one.ns for one in seen) / DAY_NS
    device_days = sum(one.ns * one.devices for one in seen) / DAY_NS
    failures = [one for one in outages if not one.planned]
    out = [one for one in failures if one.out]
    return Accounts(
        node_days,
        device_days,
        components(failures, seen),
        sizes(stretches),
        kinds(harms),
        worst(failures, harms, seen),
        EventRate(sum(map(len, removals(out).values())), node_days),
        None if labels is None else judged(out, harms, labels, node_days),
        causes(harms),
        faults(failures, harms, node_days),
    )


def components(failures: Iterable[Outage], seen: Iterable[Exposure]) -> tuple[ComponentRow, ...]:
    """Failures by component and model, the most frequent first; ``any`` is all components of a model together."""
    nodes: dict[str, float] = defaultdict(float)
    devices: dict[str, float] = defaultdict(float)
    for one in seen:
        nodes[one.model] += one.ns / DAY_NS
        devices[one.model] += one.ns * one.devices / DAY_NS / YEAR_DAYS
    found: dict[tuple[str, str], list[Outage]] = defaultdict(list)
    for failure in failures:
        for component in ("any", failure.component):
            found[component, failure.model].append(failure)
    for model in nodes:
        found.setdefault(("any", model), [])  # no failure says something too
    rows = [
        ComponentRow(
            component, model, EventRate(len(ones), nodes[model]), EventRate(len(ones), devices[model]),
            sum(one.end_ns - one.start_ns for one in ones), sum(one.out for one in ones),
        )
        for (component, model), ones in found.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda r: (r.model, r.component != "any", -r.rate.events, r.component)))


def faults(failures: Iterable[Outage], harms: Iterable[Harm], node_days: float) -> tuple[FaultRow, ...]:
    """Failures by kind, the most frequent first: of nodes, and of jobs that failed by themselves."""
    of_nodes = Counter((one.kind, one.component) for one in failures)
    of_jobs = Counter((one.fault, component_of(one.fault)) for one in harms if one.fault and one.stopped)
    rows = [
        FaultRow(*key, EventRate(of_nodes[key] + of_jobs[key], node_days), of_jobs[key])
        for key in {**of_nodes, **of_jobs}
        if key[0]
    ]
    return tuple(sorted(rows, key=lambda r: (-r.rate.events, r.fault)))


def sizes(stretches: Iterable[Stretch]) -> tuple[SizeRow, ...]:
    """Times between interruptions by job size: 1, 2, 3 to 4, 5 to 8, ... devices."""
    found: dict[int, list[Stretch]] = defaultdict(list)
    for one in stretches:
        found[max(one.devices - 1, 0).bit_length()].append(one)
    rows = []
    for power, ones in sorted(found.items()):
        hours = sum(one.ns for one in ones) / HOUR_NS
        rows.append(
            SizeRow(
                (1 << power - 1) + 1 if power else 1,
                1 << power,
                len({one.job for one in ones}),
                EventRate(sum(one.hurt for one in ones), hours),
                int(median(one.ns for one in ones)),
                max(one.ns for one in ones),
            )
        )
    return tuple(rows)


def kinds(harms: Iterable[Harm]) -> tuple[KindRow, ...]:
    """Costs by kind of incident, the dearest in device time first."""
    return _costs_by((harm.kind, harm) for harm in harms)


def causes(harms: Iterable[Harm]) -> tuple[KindRow, ...]:
    """Costs of the incidents that ended an attempt, by the kind of failure, the dearest in device time first."""
    return _costs_by((harm.cause, harm) for harm in harms if harm.cause)


def _costs_by(harms: Iterable[tuple[str, Harm]]) -> tuple[KindRow, ...]:
    found: dict[str, list[Harm]] = defaultdict(list)
    for kind, harm in harms:
        found[kind].append(harm)
    rows = [
        KindRow(
            kind, len(ones), sum(h.lost_steps for h in ones), sum(h.device_ns for h in ones),
            sum(h.cost_micro or 0 for h in ones), sum(h.cost_micro is None for h in ones),
        )
        for kind, ones in found.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda r: (-r.device_ns, r.kind)))


def worst(failures: Iterable[Outage], harms: Iterable[Harm], seen: Iterable[Exposure]) -> tuple[NodeRow, ...]:
    """Nodes by their events, the worst first: outages, and incidents of jobs that no outage explains.

    The chance is Poisson's for the mean rate of the other nodes, so that a lemon does not excuse itself.
    """
    events = _events(failures, harms)
    ns = {one.node: one.ns for one in seen}
    total, total_ns = sum(events.values()), sum(ns.values())
    rows = []
    for node, count in events.items():
        others_ns = total_ns - ns.get(node, 0)
        mean = max(total - count, 1) * ns.get(node, 0) / others_ns if others_ns > 0 else float(count)
        chance = at_least(count, mean)
        lemon = count > 1 and chance * max(len(ns), 1) < LEMON
        days = ns.get(node, 0) / DAY_NS
        rows.append(NodeRow(node, count, count / total, chance, lemon, EventRate(count, days)))
    return tuple(sorted(rows, key=lambda r: (-r.events, r.chance, r.node)))


def _events(failures: Iterable[Outage], harms: Iterable[Harm]) -> Mapping[str, int]:
    out = removals(failures)
    events = {node: len(times) for node, times in out.items()}
    for harm in harms:
        times = out.get(harm.node, ())
        if harm.node and not any(start - NEAR_NS <= harm.onset_ns <= end for start, end in times):
            events[harm.node] = events.get(harm.node, 0) + 1
    return events


def removals(failures: Iterable[Outage]) -> dict[str, list[tuple[int, int]]]:
    """When each node lost service, whole or in part: outages of its devices that overlap are one."""
    found: dict[str, list[tuple[int, int]]] = {}
    for failure in sorted(failures, key=lambda o: (o.start_ns, o.end_ns)):
        times = found.setdefault(failure.node, [])
        if times and failure.start_ns <= times[-1][1] + NEAR_NS:
            times[-1] = (times[-1][0], max(times[-1][1], failure.end_ns))
        else:
            times.append((failure.start_ns, failure.end_ns))
    return found


def judged(
    failures: Sequence[Outage], harms: Sequence[Harm], labels: Sequence[FaultLabel], node_days: float
) -> Judged:
    """A removal is false where no label of its node touches it; a label is noticed by a removal or a named incident."""
    by_node: dict[str, list[FaultLabel]] = defaultdict(list)
    for label in labels:
        by_node[label.node].append(label)
    out = removals(failures)
    false = sum(
        not any(_touch(*time, label) for label in by_node.get(node, ()))
        for node, times in out.items()
        for time in times
    )
    signs = {node: list(times) for node, times in out.items()}
    for harm in harms:
        signs.setdefault(harm.node, []).append((harm.onset_ns, harm.onset_ns))
    noticed = sum(any(_touch(*sign, label) for sign in signs.get(label.node, ())) for label in labels)
    return Judged(sum(map(len, out.values())), EventRate(false, node_days), len(labels), noticed)


def _touch(start_ns: int, end_ns: int, label: FaultLabel) -> bool:
    return start_ns <= label.end_ns + NEAR_NS and end_ns >= label.start_ns - NEAR_NS
