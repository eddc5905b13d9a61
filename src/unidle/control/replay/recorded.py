"""The jobs of a store as a workload: what would another policy have done with them?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from unidle.control.policies import policy_named
from unidle.control.queries.health_log import health_log
from unidle.control.replay.simulate import Arrival
from unidle.control.replay.workload import NO_ROOM, Scenario
from unidle.errors import BadInput
from unidle.files.trace import Renames
from unidle.fleet import Fleet, as_declared
from unidle.jobs import JobSpec, Restart, Select
from unidle.ledger.query import summary
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LedgerSource
from unidle.ledger.taxonomy import GROUPS
from unidle.place.policy import DEFAULT
from unidle.share.select import names_model
from unidle.store.protocol import Store
from unidle.view.jobs import JobView
from unidle.view.placement_input import view_of
from unidle.view.speeds import width_ppm
from unidle.view.state import View
from unidle.words import counted

# What a job would need on any devices: its steps, and what it does between them. Work that was lost
# and done again is counted once; time that the fleet cost it (start, waits, hangs) not at all.
WORK: Final = frozenset((*GROUPS["step"], "data_stall", "evaluation", "checkpoint", "compile"))
_LOST_FOR_GOOD: Final = "no_artefact"


def scenario_of_store(
    store: Store,
    view: View,
    source: LedgerSource,
    *,
    fleet: Fleet | None = None,
    window: TimeRange | None = None,
    renames: Renames | None = None,
) -> Scenario:
    """Jobs of a store that were submitted in ``window`` and have ended, on its own or another fleet.

    ``renames`` are of their queues and models. On another fleet, which must have these, jobs that no
    state of it holds are left out.

    The work of a job is what the ledger saw of it, per device. A job that failed or was cancelled
    while it ran is replayed as one that needs as long as it ran. Recorded faults of nodes happen
    again where the fleet has the node. Errors: :class:`BadInput` for a queue or model that the other
    fleet does not have, and when no job is left.
    """
    left_out: Counter[str] = Counter()
    arrivals, work_ns = _that_ended(view, source, window, left_out)
    arrivals = _renamed(arrivals, renames or Renames())
    if fleet is not None:
        arrivals = _that_fit(arrivals, fleet, left_out)
    if not arrivals:
        why = "; ".join(f"{counted(count, 'job')} left out: {text}" for text, count in left_out.items())
        raise BadInput(
            "no job of the store can be replayed" + (f" ({why})" if why else ""), field="--store",
            remedy="jobs must have run and ended in the window, and fit on the fleet",
        )  # fmt: skip
    chosen = fleet or as_declared(view.fleet)
    faults = _faults(store, {node.id for node in chosen.nodes}, min(a.at_ns for a in arrivals), view.time_ns)
    return Scenario(chosen, tuple(arrivals), work_ns, faults, dict(left_out))


def _that_ended(
    view: View, source: LedgerSource, window: TimeRange | None, left_out: Counter[str]
) -> tuple[list[Arrival], dict[str, int]]:
    """The jobs as they arrived, and the work of each; ``left_out`` counts the others."""
    worked = _worked(source, {job.id for job in view.jobs.values() if job.spec.is_filler})
    arrivals: list[Arrival] = []
    work_ns: dict[str, int] = {}
    for job in view.jobs.values():
        if window is not None and not window.start_ns <= job.submitted_ns < window.end_ns:
            continue
        why = _why_left_out(job)
        if why is not None:
            left_out[why] += 1
            continue
        width = width_ppm(view.book, job.attempts[-1])
        work_ns[job.id] = worked[job.id] * 1_000_000 // width
        arrivals.append(Arrival(max(job.submitted_ns, 1), job.id, _as_replayed(job)))
    return arrivals, work_ns


def _renamed(arrivals: list[Arrival], names: Renames) -> list[Arrival]:
    specs = [a.spec for a in arrivals]
    names.check((s.queue for s in specs), (m for s in specs for m in _models(s)))
    return [replace(a, spec=_with_names(a.spec, names)) for a in arrivals]


def _models(spec: JobSpec) -> tuple[str, ...]:
    return (*spec.where.models.include, *spec.where.models.exclude)


def _with_names(spec: JobSpec, names: Renames) -> JobSpec:
    models = spec.where.models
    select = Select(names.of_models(models.include), names.of_models(models.exclude))
    return replace(spec, queue=names.queue(spec.queue), where=replace(spec.where, models=select))


def _that_fit(arrivals: list[Arrival], fleet: Fleet, left_out: Counter[str]) -> list[Arrival]:
    """The jobs that some state of another fleet holds; a name that it lacks is an error, not a misfit."""
    policy, empty = policy_named(DEFAULT), view_of(fleet)
    models = sorted({d.model for d in fleet.devices() if d.model})
    parents = {queue.parent for queue in fleet.queues}
    queues = [queue.name for queue in fleet.queues if queue.name not in parents]
    known: dict[tuple[object, ...], bool] = {}
    for arrival in arrivals:
        spec = arrival.spec
        if queues and spec.queue not in queues:
            raise _missing("queue", arrival, spec.queue, queues, "--queue-map")
        include = spec.where.models.include
        if include and not any(names_model(name, model) for name in include for model in models):
            raise _missing("models", arrival, ", ".join(include), models, "--model-map")
        if (key := _asks(spec)) not in known:
            known[key] = policy.ever(empty, spec)
        if not known[key]:
            left_out[NO_ROOM] += 1
    return [arrival for arrival in arrivals if known[_asks(arrival.spec)]]


def _asks(spec: JobSpec) -> tuple[object, ...]:
    return (spec.queue, spec.ranks, spec.devices_per_rank, spec.device, spec.wish)


def _missing(field: str, arrival: Arrival, value: str, has: Sequence[str], option: str) -> BadInput:
    known = ", ".join(has[:8]) or "none"
    return BadInput(
        f"job {arrival.job} needs something that the fleet does not have", field=field, value=value,
        remedy=f"it has {known}; use {option} OLD=NEW to replace it",
    )  # fmt: skip


def _as_replayed(job: JobView) -> JobSpec:
    """The job's specification without time limits. Only simulated faults interrupt it; it then resumes."""
    return replace(job.spec, restart=Restart(10**6, 1.0), timeout_s=None, queue_timeout_s=None)


def _why_left_out(job: JobView) -> str | None:
    if job.spec.service is not None:
        return "a service ends when it is cancelled"
    if not job.terminal:
        return "run time unknown: not ended yet"
    if not job.attempts:
        return "run time unknown: never started"
    return None


def _worked(source: LedgerSource, fillers: set[str]) -> dict[str, int]:
    """Device-ns of work by job; of a filler that is what it filled."""
    found: dict[str, int] = defaultdict(int)
    starts: dict[str, int] = defaultdict(int)
    for group in summary(source, None, ("job", "leaf")).groups:
        job, leaf = group.labels
        filled = leaf == "filled" and job in fillers
        if job is not None and (leaf in WORK or leaf == _LOST_FOR_GOOD or filled):
            found[str(job)] += group.ns
        elif job is not None and leaf == "failed_start":
            starts[str(job)] += group.ns
    # a job that never began is replayed as one that needs as long as it tried
    return defaultdict(int, {**starts, **found})


def _faults(store: Store, nodes: set[str], from_ns: int, until_ns: int) -> tuple[tuple[int, str, int], ...]:
    """Node faults in the log, as (at, node, repaired); one that lasts is repaired at the log's end."""
    found = [
        (one.start_ns, one.target, max(until_ns, one.start_ns + 1) if one.end_ns is None else one.end_ns)
        for one in health_log(store)[0]
        if one.target in nodes
    ]
    return tuple(sorted((max(at, from_ns), node, end) for at, node, end in found if end > from_ns))
