"""Given jobs, replayed under a placement policy by the loop that places real ones. All of it is modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from unidle.control.forecast import Forecaster
from unidle.control.policies import policy_named
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.protocol import StartGang
from unidle.engine.sim.workload import Fault, S, SimJob, Workload, seeded_faults
from unidle.errors import BadInput
from unidle.files.trace import JobTrace, TraceJob
from unidle.files.trace_fits import check_fits, without_misfits
from unidle.fleet import Fleet
from unidle.jobs import JobSpec, Requests, Restart, Select, Where
from unidle.place.protocol import Policy
from unidle.store.protocol import Store
from unidle.view.state import View

AGAIN: Final = Restart(max=10**6, backoff_s=1.0)
"""A recorded job ends when its work is done: what a simulated fault cost it is done again."""

FILLER_SAVES_S: Final = 60
"""A filler saves its state after so much work: it is stopped often."""
_VAIN: Final = 9.0  # one attempt in 8,000 comes through
NO_ROOM: Final = "the fleet can never hold such a job"

Estimates = Literal["none", "exact", "learned"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Jobs with the time that their work takes alone, and the fleet that they are to run on.

    ``faults`` are those of nodes as (at, node, repaired), in ns; ``left_out`` counts jobs that
    cannot be replayed, by reason.
    """

    fleet: Fleet
    arrivals: tuple[Arrival, ...]
    work_ns: Mapping[str, int]
    faults: tuple[tuple[int, str, int], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def start_ns(self) -> int:
        """The first submission."""
        return max(min((a.at_ns for a in self.arrivals), default=1), 1)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a trace does not contain, in seconds. The defaults cost nothing unless a job is interrupted.

    A checkpoint is taken every ``checkpoint_every_s`` of work (0: never), for which the gang waits
    ``checkpoint_s``; an attempt after the first needs ``restart_s`` before its first step, and
    ``restore_s`` more if it has a checkpoint; a gang that is asked to stop leaves after
    ``stop_s`` (within the job's grace), and saves its last step if ``saves_on_stop``. ``comm_ppm``
    of each step is communication where a gang spans several nodes (``unidle.engine.sim.contention``).
    Nodes fail every ``mtbf_s`` in the mean, each by itself (0: never), and are away for ``mttr_s``;
    ``seed`` draws when.

    ``estimates`` is the source of the run times that policies use: only the jobs' own estimates (``none``),
    the true times multiplied by ``estimate_factor`` (``exact``), or, for jobs without an estimate, the run
    times of earlier jobs, as the live loop learns them (``learned``).
    """

    checkpoint_every_s: float = 1800.0
    checkpoint_s: float = 0.0
    restart_s: float = 60.0
    restore_s: float = 30.0
    stop_s: float = 0.0
    saves_on_stop: bool = False
    comm_ppm: int = 0
    mtbf_s: float = 0.0
    mttr_s: float = 3600.0
    seed: int = 1
    estimates: Estimates = "learned"
    estimate_factor: float = 1.0


def scenario_of(trace: JobTrace, fleet: Fleet, *, skip_misfits: bool = False) -> Scenario:
    """A trace as jobs to replay.

    Errors: :class:`unidle.errors.BadInput` for a queue or model that the fleet lacks, for a job that no
    state of it holds (with ``skip_misfits`` it is left out), and for one larger than its queue may ever be.
    """
    left_out: dict[str, int] = {}
    if skip_misfits:
        trace, skipped = without_misfits(trace, fleet)
        left_out = {NO_ROOM: skipped} if skipped else {}
    else:
        check_fits(trace, fleet)
    arrivals = tuple(Arrival(max(job.submit_ns, 1), job.job, _spec(job)) for job in trace.jobs)
    _check_limits(trace, fleet, arrivals)
    return Scenario(fleet, arrivals, {job.job: job.duration_ns for job in trace.jobs}, left_out=left_out)


def _spec(job: TraceJob) -> JobSpec:
    return JobSpec(
        command=("replay",),
        name=job.name or f"{job.gpus}-GPU {job.queue}",
        user=job.user,
        ranks=job.ranks,
        devices_per_rank=job.gpus_each,
        device="gpu",
        queue=job.queue,
        priority=job.priority,
        restart=AGAIN,
        preemption="low" if job.preemptible else "medium",
        min_runtime_s=job.min_runtime_s,
        estimate_s=job.estimate_s,
        requests=Requests(job.cpu_milli_each / 1000, job.memory_bytes_each),
        where=Where(models=Select(include=job.models)),
    )


def _check_limits(trace: JobTrace, fleet: Fleet, arrivals: tuple[Arrival, ...]) -> None:
    if not fleet.queues:
        return
    from unidle.place.admission import never

    known: set[tuple[str, int]] = set()
    for job, arrival in zip(trace.jobs, arrivals, strict=True):
        if (job.queue, job.gpus) in known:
            continue
        known.add((job.queue, job.gpus))
        why = never(fleet, arrival.spec, arrival.at_ns)
        if why is not None:
            raise trace.error(
                job, "gpus", why.text, job.gpus, "leave the job out, or raise the queue's limit"
            )


def replay(
    scenario: Scenario,
    policy: str,
    store: Store,
    assumptions: Assumptions | None = None,
    *,
    until_ns: int | None = None,
) -> View:
    """Drive the scenario to its end under a policy (of ``unidle.place.policy``), into an empty store.

    The same call gives the same log, byte by byte. At ``until_ns`` it ends, whatever runs or waits.

    Errors: :class:`unidle.errors.BadInput` where nodes fail so often that a job would never end.
    """
    assumed = assumptions or Assumptions()
    if until_ns is None:
        _check_ends(scenario, assumed)
    return simulate(
        store,
        scenario.fleet,
        told(scenario, assumed),
        behaviour(scenario.work_ns, assumed),
        _policy(policy, scenario),
        faults=_faults(scenario, assumed),
        options=SimulationOptions(
            start_ns=scenario.start_ns,
            until_ns=until_ns,
            forecaster=Forecaster() if assumed.estimates == "learned" else None,
            policy_name=policy,
            saves_together=True,
            never_idle=True,
        ),
    )


def _policy(name: str, scenario: Scenario) -> Policy:
    """The policy; one that is the bound of others gets the true run times."""
    made = policy_named(name)
    know = getattr(made, "know", None)
    if know is not None:
        know(scenario.work_ns)
    return made


def told(scenario: Scenario, assumed: Assumptions) -> tuple[Arrival, ...]:
    """The arrivals with what policies know of run times, and that jobs save their work."""
    return tuple(replace(a, spec=_told(a.spec, scenario.work_ns[a.job], assumed)) for a in scenario.arrivals)


def _told(spec: JobSpec, work_ns: int, assumed: Assumptions) -> JobSpec:
    path = (spec.checkpoint_path or ".") if assumed.checkpoint_every_s or spec.is_filler else None
    exact = assumed.estimates == "exact" and not spec.is_filler
    estimate_s = work_ns * assumed.estimate_factor / S if exact else spec.estimate_s
    return replace(spec, checkpoint_path=path, estimate_s=estimate_s)


def behaviour(work_ns: Mapping[str, int], assumed: Assumptions) -> Workload:
    """Jobs that do the given work in steps of one second, of which only those that are saved are reported."""
    every = round(assumed.checkpoint_every_s)
    ns: Callable[[float], int] = lambda seconds: round(seconds * S)  # noqa: E731

    def workload(command: StartGang) -> SimJob:
        return SimJob(
            work_ns=work_ns[command.job],
            startup_ns=ns(assumed.restart_s) if command.attempt > 1 else 0,
            step_ns=S,
            checkpoint_every=FILLER_SAVES_S if command.spec.is_filler else every,
            checkpoint_ns=ns(assumed.checkpoint_s),
            restore_ns=ns(assumed.restore_s),
            stop_ns=ns(assumed.stop_s),
            saves_on_stop=assumed.saves_on_stop,
            report_every=0,
            comm_ppm=0 if command.spec.is_filler else assumed.comm_ppm,
            steady=command.spec.is_filler,  # its saves are many, and are not each reported
        )

    return workload


def _check_ends(scenario: Scenario, assumed: Assumptions) -> None:
    """Refuse faults that no job outlives: an attempt has to reach its first checkpoint now and then.

    It does with the chance ``exp(-nodes * needed / mtbf)``, faults being exponential.
    """
    if scenario.faults or not assumed.mtbf_s:
        return
    widest = max(len(node.devices) for node in scenario.fleet.nodes)
    overhead_s = assumed.restart_s + assumed.restore_s
    for arrival in scenario.arrivals:
        work_s = scenario.work_ns[arrival.job] / S
        saved_s = min(work_s, assumed.checkpoint_every_s or work_s)
        nodes = -(-arrival.spec.ranks * arrival.spec.devices_per_rank // widest)
        needed_s = nodes * (saved_s + overhead_s)
        if needed_s > _VAIN * assumed.mtbf_s:
            raise BadInput(
                f"job {arrival.job} would never reach a checkpoint: its nodes ({nodes} or more) must stay up for {saved_s + overhead_s:.0f} s",
                field="--mtbf", value=assumed.mtbf_s / 3600,
                remedy=f"use --mtbf {needed_s / _VAIN / 3600:.2g} or more, a shorter --checkpoint-every, or --stop-after H",
            )  # fmt: skip


def _faults(scenario: Scenario, assumed: Assumptions) -> Iterable[Fault]:
    if scenario.faults or not assumed.mtbf_s:
        return scenario.faults
    nodes = [node.id for node in scenario.fleet.nodes]
    return seeded_faults(
        nodes, assumed.seed, mtbf_s=assumed.mtbf_s, mttr_s=assumed.mttr_s, start_ns=scenario.start_ns
    )
