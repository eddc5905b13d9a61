"""A trace of faults, replayed on a gang by the loop and the policies that run real jobs. All of it is modelled.

One job holds ``gang`` nodes of ``gang + spares``; the faults of that many servers of the trace, drawn by the seed,
hit them. A gang takes whole nodes, so a node is simulated as one device, and GPU-hours are node-hours times its GPUs.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, Literal

from unidle.checkpoint.interval import Costs, best_interval, observed_mttf
from unidle.control.policies import policy_named
from unidle.control.replay.ettr import FaultOutcome, GangCosts, outcome_of_gang
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.protocol import StartGang
from unidle.engine.sim.workload import NodeFault, S, SimJob
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.fault_trace import FaultTrace, NodeTrouble, as_servers
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, Restart
from unidle.place.policy import DEFAULT
from unidle.store.memory import ForgetfulStore
from unidle.store.protocol import Store
from unidle.view.state import View
from unidle.words import counted

JOB: Final = "gang"
MODEL: Final = "node"
_DAY_S: Final = 86_400.0
Capability = Literal["spares", "peer_copies", "interval", "warm_restart", "preflight"]
CAPABILITIES: Final[tuple[Capability, ...]] = ("spares", "peer_copies", "interval", "warm_restart", "preflight")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayTerms:
    """What a trace does not say; seconds, unless named otherwise.

    For a checkpoint the gang waits ``write_s``. A start takes ``restart_s`` (processes, imports, rendezvous), a warm
    one ``warm_s``, and ``restore_s`` to read a checkpoint, or ``copy_restore_s`` to get it from a peer's memory; for
    a copy to there the gang waits ``copy_s``. From a fault to its verdict it is ``detect_s``. Preflight takes
    ``preflight_s`` before each start and ``burn_in_s`` after each repair; of the faults that come within
    ``relapse_s`` of a repair, which then was none, it finds the part ``recall``.
    """

    write_s: float = 60.0
    restart_s: float = 300.0
    warm_s: float = 5.0
    restore_s: float = 60.0
    copy_s: float = 0.5
    copy_restore_s: float = 5.0
    detect_s: float = 10.0
    preflight_s: float = 5.0
    burn_in_s: float = 1800.0
    relapse_s: float = 86_400.0
    recall: float = 0.9
    step_s: float = 10.0
    steps: int = 0  # 0: more than the trace has time for
    gpus_per_node: int = 8
    gpu_hour_price: float = 10.0
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class CapabilityCosts:
    """The capabilities in use. ``every_s`` is work between two checkpoints, None: chosen by the cost model."""

    spares: int = 0
    peer_copies: bool = False
    every_s: float | None = 1800.0
    warm: bool = False
    preflight: bool = False

    def has(self, capability: Capability) -> bool:
        return {
            "spares": self.spares > 0,
            "peer_copies": self.peer_copies,
            "interval": self.every_s is None,
            "warm_restart": self.warm,
            "preflight": self.preflight,
        }[capability]

    def without(self, capability: Capability, fixed_s: float) -> CapabilityCosts:
        """All but this one; checkpoints every ``fixed_s`` instead of the chosen interval."""
        if capability == "spares":
            return replace(self, spares=0)
        if capability == "peer_copies":
            return replace(self, peer_copies=False)
        if capability == "interval":
            return replace(self, every_s=fixed_s)
        return replace(self, warm=False) if capability == "warm_restart" else replace(self, preflight=False)


@dataclass(frozen=True, slots=True)
class ReplayPace:
    """What a gang does by its ways: intervals in whole steps, the start of a restart in seconds."""

    save_every: int
    copy_every: int
    startup_s: float


@dataclass(slots=True)
class GangSeen:
    """How long the job's attempts ran that have ended, and how many of them failed."""

    ran_ns: int = 0
    failures: int = 0
    _placed_ns: int = 0

    def hear(self, event: ev.Event, time_ns: int) -> None:
        if isinstance(event, ev.AttemptPlaced):
            self._placed_ns = time_ns
        elif isinstance(event, ev.AttemptEnded):
            self.ran_ns += time_ns - self._placed_ns
            self.failures += event.outcome == "failed"


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """One replay. ``name`` identifies the ways."""

    name: str
    gang: int
    seed: int
    ways: CapabilityCosts


@dataclass(frozen=True, slots=True)
class FaultReplay:
    """A trace of ``servers`` servers, and what is assumed in addition.

    Errors: :class:`unidle.errors.BadInput` for fewer servers than the trace names.
    """

    trace: FaultTrace
    servers: int
    terms: ReplayTerms

    def __post_init__(self) -> None:
        as_servers(self.trace, self.servers)

    @property
    def fault_rate(self) -> float:
        """Faults per node and second, over the whole trace."""
        return len(self.trace.faults) / (self.servers * self.trace.end_ns / S)

    def pace(self, gang: int, ways: CapabilityCosts, seen: GangSeen | None = None) -> ReplayPace:
        """The intervals of a gang: by the failure rate of the trace, corrected by what was seen of the gang itself.

        Where peers hold copies, only failures that take those too need a checkpoint: saves are as much rarer, but not
        rarer than one a day, for what the trace does not show.
        """
        terms = self.terms
        first_s = (terms.warm_s if ways.warm else terms.restart_s) + (
            terms.preflight_s if ways.preflight else 0.0
        )
        mttf_s = 1 / max(gang * self.fault_rate, 1e-12)
        if seen is not None:
            mttf_s = observed_mttf(seen.failures, seen.ran_ns / S, mttf_s)
        costs = Costs(terms.write_s, mttf_s, first_s + terms.restore_s, terms.detect_s, terms.step_s)
        copy = 0
        if ways.peer_copies:
            copied = replace(costs, stall_s=terms.copy_s, restart_s=first_s + terms.copy_restore_s)
            copy = max(round(best_interval(copied) / terms.step_s), 1)
            lost = self.copies_lost(gang, first_s + terms.detect_s)
            costs = replace(costs, mttf_s=mttf_s / max(lost, 1e-12))
        every_s = (
            min(best_interval(costs), max(_DAY_S, terms.write_s)) if ways.every_s is None else ways.every_s
        )
        save = max(round(every_s / terms.step_s), 1)
        if copy:
            copy = min(copy, save)
            save = -(-save // copy) * copy
        return ReplayPace(save, copy, first_s)

    def copies_lost(self, gang: int, within_s: float) -> float:
        """The part of a gang's failures that take a node and, within that time, the one with its copy: by the trace.

        Servers that fail together are counted in it; that they are neighbours in the gang is left to chance.
        """
        if gang < 2:
            return 1.0
        starts = sorted((fault.start_ns, fault.node) for fault in self.trace.faults)
        pairs = 0
        for k, (at_ns, node) in enumerate(starts):
            for other_ns, other in starts[k + 1 :]:
                if other_ns > at_ns + within_s * S:
                    break
                pairs += other != node
        return min(pairs / len(starts) * gang / self.servers * 2 / (gang - 1), 1.0) if starts else 0.0

    def run(self, case: ReplayCase, store: Store | None = None) -> FaultOutcome:
        """One replay, to the end of the trace or of the job. The same call gives the same log, byte by byte."""
        kept = ForgetfulStore() if store is None else store
        terms, seen, paces = self.terms, GangSeen(), list[ReplayPace]()

        def behaviour(command: StartGang) -> SimJob:
            paces.append(self.pace(case.gang, case.ways, seen))
            return self._behaviour(command, paces[-1])

        nodes = self.nodes(case)
        price = terms.gpu_hour_price * terms.gpus_per_node
        view = simulate(
            kept,
            _fleet(nodes, price, terms.currency),
            [Arrival(1, JOB, _spec(case.gang))],
            behaviour,
            policy_named(DEFAULT),
            faults=self._faults(nodes, case),
            options=SimulationOptions(
                detect_ns=round(terms.detect_s * S),
                until_ns=self.trace.end_ns,
                policy_name=DEFAULT,
                watcher=seen.hear,
            ),
        )
        return self._outcome(view, kept, paces or [self.pace(case.gang, case.ways)])

    def _outcome(self, view: View, store: Store, paces: Sequence[ReplayPace]) -> FaultOutcome:
        terms, pace = self.terms, paces[0]
        restore_s = terms.copy_restore_s if pace.copy_every else terms.restore_s
        costs = GangCosts(
            save_s=fmean(p.save_every for p in paces) * terms.step_s,
            copy_s=fmean(p.copy_every for p in paces) * terms.step_s,
            write_s=terms.write_s,
            copy_stall_s=terms.copy_s,
            restart_s=pace.startup_s + restore_s,
            detect_s=terms.detect_s,
        )
        return outcome_of_gang(view, store, view.jobs[JOB], terms.gpus_per_node, costs)

    def nodes(self, case: ReplayCase) -> list[str]:
        """The servers of a replay; with more spares the first ones are the same.

        Errors: :class:`unidle.errors.BadInput` where gang and spares are more than the trace's servers.
        """
        names = list(as_servers(self.trace, self.servers))
        wanted = case.gang + case.ways.spares
        if wanted > len(names):
            raise BadInput(
                f"with {counted(case.ways.spares, 'spare')} is more than the trace has servers: {len(names)}", field="--gang",
                value=case.gang, remedy=f"give {len(names) - case.ways.spares} or less",
            )  # fmt: skip
        random.Random(f"servers/{case.seed}").shuffle(names)
        return names[:wanted]

    def _faults(self, nodes: Iterable[str], case: ReplayCase) -> list[NodeFault]:
        by_node: dict[str, list[NodeTrouble]] = {node: [] for node in nodes}
        for trouble in self.trace.faults:
            if trouble.node in by_node:
                by_node[trouble.node].append(trouble)
        found = []
        for node, troubles in by_node.items():
            chance = random.Random(f"preflight/{case.seed}/{node}")
            spans = one_by_one(troubles)
            if case.ways.preflight:
                spans = proved(spans, self.terms, [chance.random() for _ in spans])
            found += [NodeFault(max(a, 1), node, max(b, 2), what) for a, b, what in spans]
        return sorted(found)

    def _behaviour(self, command: StartGang, pace: ReplayPace) -> SimJob:
        terms = self.terms
        step_ns = round(terms.step_s * S)
        steps = terms.steps or self.trace.end_ns // step_ns + 1
        first = command.attempt == 1
        return SimJob(
            work_ns=steps * step_ns,
            startup_ns=round((terms.restart_s if first else pace.startup_s) * S),
            step_ns=step_ns,
            checkpoint_every=pace.save_every,
            checkpoint_ns=round(terms.write_s * S),
            restore_ns=round(terms.restore_s * S),
            steady=True,
            copy_every=pace.copy_every,
            copy_ns=round(terms.copy_s * S),
            copy_restore_ns=round(terms.copy_restore_s * S),
        )


Span = tuple[int, int, str]  # from, until (ns), component


def one_by_one(troubles: Iterable[NodeTrouble]) -> list[Span]:
    """The times in which one server is down: faults that overlap or touch are one, named by the first."""
    spans: list[Span] = []
    for trouble in sorted(troubles):
        if spans and trouble.start_ns <= spans[-1][1]:
            first_ns, last_ns, what = spans[-1]
            spans[-1] = (first_ns, max(last_ns, trouble.end_ns), what)
        else:
            spans.append((trouble.start_ns, trouble.end_ns, trouble.component))
    return spans


def proved(spans: Sequence[Span], terms: ReplayTerms, drawn: Sequence[float]) -> list[Span]:
    """The same with a burn-in after each repair: a relapse that it finds keeps the server out until it is over.

    ``drawn`` are chances in [0, 1), one for each span.
    """
    burn_in_ns, relapse_ns = round(terms.burn_in_s * S), round(terms.relapse_s * S)
    found: list[Span] = []
    repaired_ns = 0
    for (start_ns, end_ns, what), chance in zip(spans, drawn, strict=True):
        relapse = bool(found) and start_ns < repaired_ns + relapse_ns and chance < terms.recall
        if found and (relapse or start_ns <= found[-1][1]):
            found[-1] = (found[-1][0], max(found[-1][1], end_ns + burn_in_ns), found[-1][2])
        else:
            found.append((start_ns, end_ns + burn_in_ns, what))
        repaired_ns = end_ns
    return found


def variants(
    ways: CapabilityCosts, fixed_s: float, intervals: Iterable[float] = ()
) -> dict[str, CapabilityCosts]:
    """The ways as given, without each capability that they have, and with none; and with other fixed intervals."""
    found = {"as_given": ways}
    used = [one for one in CAPABILITIES if ways.has(one)]
    for one in used:
        found[f"no_{one}"] = ways.without(one, fixed_s)
    if len(used) > 1:
        found["none"] = CapabilityCosts(every_s=ways.every_s or fixed_s)
    for every_s in intervals:
        found[f"every_{every_s:g}s"] = replace(ways, every_s=every_s)
    return found


def runs(
    replay: FaultReplay, cases: Sequence[ReplayCase], processes: int
) -> Iterator[tuple[ReplayCase, FaultOutcome]]:
    """All cases in order, several at a time."""
    if min(processes, len(cases)) <= 1:
        for case in cases:
            yield case, replay.run(case)
        return
    # A fresh interpreter each: forking one with NumPy's threads may hang.
    with ProcessPoolExecutor(
        min(processes, len(cases)), multiprocessing.get_context("spawn"), _settle_in, (replay,)
    ) as pool:
        yield from zip(cases, pool.map(_run, cases), strict=True)


_here: list[FaultReplay] = []  # a worker's own copy, sent once instead of with every case


def _settle_in(replay: FaultReplay) -> None:
    _here[:] = [replay]


def _run(case: ReplayCase) -> FaultOutcome:
    return _here[0].run(case)


def _fleet(nodes: Sequence[str], price: float, currency: str) -> Fleet:
    return Fleet(
        tiers=(Tier("fleet", "site"),),
        nodes=tuple(Node(n, "fleet", (Device(f"{n}/0", n, 0, "gpu", MODEL),)) for n in nodes),
        prices_per_device_hour={MODEL: price},
        currency=currency,
        source="trace",
    )


def _spec(ranks: int) -> JobSpec:
    # no back-off: what a fault costs is to be seen, not what waiting for better times does
    again = Restart(10**6, 0.0)
    return JobSpec(
        ("replay",), name=JOB, ranks=ranks, device="gpu", restart=again, checkpoint_path=".", grace_s=0.0
    )
