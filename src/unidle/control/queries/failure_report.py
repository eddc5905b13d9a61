"""The accounts of a store: what its log, its jobs and its ledger say of failures in a window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from unidle.control.queries.health_log import health_log
from unidle.files.fault_trace import FaultTrace
from unidle.guard.failure_statistics import Accounts, Exposure, FaultLabel, Harm, Outage, Stretch, accounts
from unidle.guard.fault_episodes import FaultSign, OutSpell, failures
from unidle.guard.fault_kinds import SeenFault, class_of_failure
from unidle.ledger.query import summary
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LedgerSource
from unidle.store.protocol import Store
from unidle.view.incidents import Incident, incidents
from unidle.view.speeds import width_ppm
from unidle.view.state import View

_PPM: Final = 1_000_000


def failures_of(
    store: Store, view: View, source: LedgerSource, window: TimeRange, labels: FaultTrace | None = None
) -> Accounts:
    """The accounts of a window. Labels are faults that are known, in time since the store's first event."""
    models, nodes = _models(view), _nodes(view)
    found = list(incidents(view))
    known = None if labels is None else list(_labels(labels, view.first_ns, window, set(models)))
    return accounts(
        list(_outages(store, window, models, nodes)),
        list(_seen(source, window, models, nodes)),
        [_harm(view, one) for one in found if window.start_ns <= one.onset_ns < window.end_ns],
        list(_stretches(view, found, window)),
        known,
    )


def _models(view: View) -> dict[str, str]:
    """What each node's devices are, those that left the fleet included."""
    models: dict[str, dict[str, None]] = defaultdict(dict)
    for ref in view.book.slices:
        models[ref.node][ref.model or "no model"] = None
    return {node: " + ".join(sorted(names)) for node, names in models.items()}


def _nodes(view: View) -> dict[str, str]:
    """The node of each device."""
    return {ref.device: ref.node for ref in view.book.slices}


def _outages(
    store: Store, window: TimeRange, models: dict[str, str], nodes: dict[str, str]
) -> Iterator[Outage]:
    """The failures of nodes and devices that began in the window."""
    spells, faults = health_log(store)
    out = [
        OutSpell(
            nodes.get(one.target, one.target), one.target if one.target in nodes else "", one.start_ns,
            window.end_ns if one.end_ns is None else min(one.end_ns, window.end_ns), one.health, one.because,
        )
        for one in spells
    ]  # fmt: skip
    signs = [
        FaultSign(
            at_ns, one.node, one.device, str(one.because.figures.get("hardware", "")),
            SeenFault(one.kind, one.code, one.action, one.because.text),
        )
        for at_ns, one in faults
    ]  # fmt: skip
    for one in failures(signs, out, models):
        if window.start_ns <= one.start_ns < window.end_ns:  # counted where it began
            yield one


def _seen(
    source: LedgerSource, window: TimeRange, models: dict[str, str], nodes: dict[str, str]
) -> Iterator[Exposure]:
    ns: dict[str, int] = defaultdict(int)
    for group in summary(source, window, ("device", "leaf")).groups:
        device, leaf = group.labels
        if leaf != "unseen":
            ns[str(device)] += group.ns
    by_node: dict[str, list[int]] = defaultdict(list)
    for device, seen_ns in ns.items():
        by_node[nodes[device]].append(seen_ns)
    for node, times in by_node.items():
        yield Exposure(node, models[node], len(times), max(times))


def _harm(view: View, one: Incident) -> Harm:
    if one.job is None or one.attempt is None:  # it hit nobody
        return Harm("", one.kind, one.node, one.onset_ns, 0, 0, None, False)
    attempt = view.jobs[one.job].attempts[one.attempt - 1]
    stopped = one.kind == "exit" or (attempt.stop is not None and attempt.stop.why == "hung")
    of_node = one.kind in ("gpu", "node", "storage")
    cause = attempt.failure_kind if stopped or of_node else ""
    rank = None if one.rank is None or one.kind != "exit" else attempt.ranks[one.rank]
    fault = "network" if one.kind == "cut" else class_of_failure(cause, None if rank is None else rank.code)
    return Harm(
        one.job,
        one.kind,
        one.node,
        one.onset_ns,
        one.lost_steps,
        one.device_ns,
        one.cost_micro,
        stopped,
        cause,
        fault if stopped and not of_node else "",
    )


def _stretches(view: View, found: Iterable[Incident], window: TimeRange) -> Iterator[Stretch]:
    hurt = {(one.job, one.attempt) for one in found if one.job is not None and _harm(view, one).stopped}
    for job in view.jobs.values():
        for attempt in job.attempts:
            ended_ns = view.time_ns if attempt.ended_ns is None else attempt.ended_ns
            start_ns, end_ns = max(attempt.placed_ns, window.start_ns), min(ended_ns, window.end_ns)
            if end_ns > start_ns:
                devices = -(-width_ppm(view.book, attempt) // _PPM)
                inside = ended_ns <= window.end_ns
                yield Stretch(job.id, devices, end_ns - start_ns, inside and (job.id, attempt.number) in hurt)


def _labels(trace: FaultTrace, first_ns: int, window: TimeRange, nodes: set[str]) -> Iterator[FaultLabel]:
    """The labels of the fleet's nodes that begin in the window."""
    for fault in trace.faults:
        start_ns = first_ns + fault.start_ns
        if fault.node in nodes and window.start_ns <= start_ns < window.end_ns:
            yield FaultLabel(fault.node, start_ns, first_ns + fault.end_ns)
