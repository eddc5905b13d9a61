"""The simulated engine: the live loop with a virtual clock and gangs that only pretend to run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from unidle.clock import VirtualClock
from unidle.engine.protocol import (
    Disrupted,
    HealthChange,
    LiveAttempt,
    NodesChanged,
    Observation,
    RankMarks,
    Silent,
    StartGang,
    StopGang,
    Utilised,
    WatchGang,
)
from unidle.engine.sim.contention import DeviceContention, Key, UplinkContention
from unidle.engine.sim.gang import KILLED, RankMark, SimGang
from unidle.engine.sim.host_reports import Befalls, HostReports, with_nodes
from unidle.engine.sim.peer_copies import PeerCopies
from unidle.engine.sim.steady import SteadyGang
from unidle.engine.sim.workload import Fault, NodeFault, SimJob, Workload, in_order
from unidle.events.marks import Mark
from unidle.events.types import Use
from unidle.fleet import Fleet
from unidle.jobs import Reason


class SimEngine:
    """Implements the ``Engine`` protocol of ``unidle.engine.protocol``.

    ``faults`` are node faults as ``(at_ns, node, repaired_ns)``: the node's gangs lose their ranks
    there with code -9, and the node is down until it is repaired. An iterator must give them by
    time, and may be without end. What hangs at a fault is seen to be affected, and the node to be down,
    ``detect_ns`` later. With ``saves_together`` saves of gangs are reported with the next thing that happens, which
    is as true and takes fewer turns of the loop. The engine outlives a controller: hand it to the next one, as real
    processes are.
    """

    modelled: Final = True

    def __init__(
        self,
        fleet: Fleet,
        clock: VirtualClock,
        workload: Workload,
        faults: Iterable[Fault] = (),
        detect_ns: int = 0,
        saves_together: bool = False,
    ) -> None:
        self._saves_together, self._saves_alone = saves_together, False
        self._saved_at: dict[tuple[Key, int], int] = {}
        self._fleet, self._clock, self._workload = fleet, clock, workload
        self._network, self._parts = UplinkContention(fleet), DeviceContention(fleet)
        self._gangs: dict[Key, SimGang] = {}
        self._on_node: dict[str, dict[Key, None]] = {}
        self._durable: dict[str, int] = {}
        self._order = count()
        self._heap: list[tuple[int, int, Key, int]] = []  # version of the gang's entry last: older are stale
        self._faults = iter(faults) if isinstance(faults, Iterator) else in_order(faults)
        self._fault = self._next_fault()
        self._detect_ns = detect_ns
        self._unseen: dict[str, None] = {}  # nodes that are down, not known yet
        self._coming: list[
            tuple[int, int, NodeFault, bool]
        ] = []  # seen to be down (False), and repaired (True)
        self._reports = HostReports()
        self._copies = PeerCopies()
        self._journal: dict[Key, list[list[Mark]]] = {}
        self._out: list[Observation] = []
        self._changed: dict[str, HealthChange] = {}  # by node, the last
        self._uses: dict[Key, Use] = {}  # of watched gangs, the last that was reported

    def fleet(self) -> Fleet:
        return self._fleet

    def befalls(self, at_ns: int, what: Befalls) -> None:
        """At that time this comes true of the simulated hosts, and is reported.

        A gang that is disrupted is killed. Of a rank that is silent nothing is reported until it answers again.
        """
        self._reports.add(at_ns, what)

    def adopt(self, live: Sequence[LiveAttempt]) -> None:
        """Report again what the log does not know yet of gangs that still run, and what is down."""
        self._out[:] = [*self._changed.values(), *self._reports.told.values()]
        self._uses.clear()
        alive = {(attempt.command.job, attempt.command.attempt) for attempt in live}
        for ended in set(self._journal) - alive:  # the last controller died before it could let go of them
            self.release(*ended)
        for attempt in live:
            key = (attempt.command.job, attempt.command.attempt)
            for rank, marks in enumerate(self._journal.get(key, ())):
                known = attempt.marks_known[rank]
                if (key, rank) in self._reports.silent:
                    self._reports.silent[key, rank] = known
                elif len(marks) > known:
                    self._out.append(RankMarks(*key, rank, known, tuple(marks[known:])))

    def start(self, command: StartGang) -> None:
        key = (command.job, command.attempt)
        if key in self._journal:
            return
        self._journal[key] = [[] for _ in command.places]
        gang = self._gang(command, job := self._workload(command))
        self._gangs[key] = gang
        for place in command.places:
            self._on_node.setdefault(place.node, {})[key] = None
        if job.comm_ppm:
            nodes = [place.node for place in command.places]
            self._contend(self._network.join(key, nodes, job.comm_ppm))
        self._contend(self._parts.join(key, command))
        if any(place.node in self._unseen for place in command.places):
            self._hear(gang, gang.halt(self._clock.now_ns()))
        self._schedule(gang)

    def stop(self, command: StopGang) -> None:
        key, now_ns = (command.job, command.attempt), self._clock.now_ns()
        gang = self._gangs.get(key)
        if gang is not None:
            self._hear(gang, gang.ask_to_stop(now_ns, command.grace_ns))
            self._hear(gang, gang.advance(now_ns))
            self._settle(gang)
        elif key not in self._journal:
            self._journal[key] = [[] for _ in range(command.ranks)]
            for rank in range(command.ranks):
                self._emit(key, rank, Mark("lost", now_ns, text="never started"))

    def watch(self, command: WatchGang) -> None:
        """Report what a gang does, at once and whenever it changes; it is busy where nothing else is reported."""
        key = (command.job, command.attempt)
        gang = self._gangs.get(key)
        if not command.every_ns or gang is None:
            self._uses.pop(key, None)
        elif key not in self._uses:
            self._uses[key] = "busy"
            self._tell_use(gang)

    def release(self, job: str, attempt: int) -> None:
        self._journal.pop((job, attempt), None)
        self._reports.forget((job, attempt))
        gang = self._gangs.get((job, attempt))
        if gang is not None:
            self._drop(gang)

    def finish(self, job: str) -> None:
        """Nothing is kept for a job between its attempts."""

    def keep(self, jobs: Collection[str]) -> None:
        """As for :meth:`finish`."""

    def poll(self) -> Sequence[Observation]:
        now_ns = self._clock.now_ns()
        while (at_ns := self._next_ns()) is not None and at_ns <= now_ns:
            if self._reports.next_ns == at_ns:
                self._befall(self._reports.take(), at_ns)
            elif self._coming and self._coming[0][0] == at_ns:
                _, _, coming, repaired = heapq.heappop(self._coming)
                if repaired:
                    because = Reason("sim_repair", f"node {coming.node} was repaired")
                    self._change(HealthChange(coming.node, "healthy", because))
                else:
                    self._see(coming)
            elif self._fault is not None and self._fault.at_ns == at_ns:
                self._break(self._fault)
                self._fault = self._next_fault()
            else:
                _, _, key, version = heapq.heappop(self._heap)
                gang = self._gangs.get(key)
                if gang is not None and gang.version == version:
                    self._hear(gang, gang.advance(at_ns))
                    self._settle(gang)
        out, self._out = self._out, []
        return out

    def tell(self) -> None:
        """Let each gang report the last step that it completed, as at an end."""
        for gang in self._gangs.values():
            self._hear(gang, gang.stand(self._clock.now_ns()))
            self._schedule(gang)

    def wait(self, until_ns: int | None) -> None:
        """Jump to the next happening, or to ``until_ns`` where that comes first."""
        if self._out:
            return
        if self._saves_together:
            self._saves_alone = True
            self._save_until(until_ns)
            self._saves_alone = False
            self._saved_at.clear()
        times = [t for t in (self._next_ns(), until_ns) if t is not None]
        if times:
            self._clock.advance_to(min(times))

    def _save_until(self, until_ns: int | None) -> None:
        """Let gangs save their state as long as nothing else happens: it is reported with what happens next."""
        while (at_ns := self._next_ns()) is not None and (until_ns is None or at_ns < until_ns):
            if not self._heap or self._heap[0][0] != at_ns or self._reports.next_ns == at_ns:
                return
            if self._coming and self._coming[0][0] == at_ns:
                return
            _, _, key, version = self._heap[0]
            gang = self._gangs.get(key)
            fresh = gang is not None and gang.version == version
            if gang is not None and fresh and not gang.saves_next:
                return
            heapq.heappop(self._heap)
            if gang is not None and fresh:
                self._clock.advance_to(at_ns)
                self._hear(gang, gang.advance(at_ns))
                self._settle(gang)

    @property
    def idle(self) -> bool:
        """Nothing will ever happen again by itself, except faults of nodes on which nothing runs."""
        waits = self._heap or self._out or self._coming or self._reports.next_ns is not None
        return not (waits or (self._fault is not None and self._gangs))

    def close(self) -> None:
        """Simulated gangs need no one to hold them."""

    # -- what happens next -----------------------------------------------------------------------

    def _next_ns(self) -> int | None:
        heap, coming, fault = self._heap, self._coming, self._fault
        at_ns = heap[0][0] if heap else None
        told_ns = self._reports.next_ns
        if told_ns is not None and (at_ns is None or told_ns <= at_ns):
            at_ns = told_ns
        if coming and (at_ns is None or coming[0][0] <= at_ns):
            at_ns = coming[0][0]
        if fault is not None and (at_ns is None or fault.at_ns < at_ns):
            at_ns = fault.at_ns
        return at_ns

    def _next_fault(self) -> NodeFault | None:
        fault = next(self._faults, None)
        return None if fault is None else NodeFault(*fault)

    def _schedule(self, gang: SimGang) -> None:
        """Put the gang's next happening on the heap; entries from before are stale then."""
        gang.version += 1
        at_ns = gang.next_ns(self._clock.now_ns())
        if at_ns is not None:
            heapq.heappush(self._heap, (at_ns, next(self._order), gang.key, gang.version))

    def _settle(self, gang: SimGang) -> None:
        """After something happened to the gang: what that means for others, and when to look at it again."""
        if gang.key in self._uses:
            self._tell_use(gang)
        if gang.halted:
            self._keep_copies(gang)
            self._contend(self._network.leave(gang.key) + self._parts.leave(gang.key))
        if any(gang.alive):
            self._schedule(gang)
        else:
            self._drop(gang)

    def _contend(self, met: list[Key]) -> None:
        """Give the gangs that met on an uplink or a device their new pace."""
        now_ns = self._clock.now_ns()
        for key in met:
            gang = self._gangs[key]
            if gang.restretch(now_ns, self._network.stretch_ppm(key), self._parts.slowdown_ppm(key)):
                self._schedule(gang)

    def _drop(self, gang: SimGang) -> None:
        del self._gangs[gang.key]
        self._uses.pop(gang.key, None)
        self._contend(self._network.leave(gang.key) + self._parts.leave(gang.key))
        for place in gang.command.places:
            self._on_node[place.node].pop(gang.key, None)

    # -- what is reported ------------------------------------------------------------------------

    def _hear(self, gang: SimGang, told: Iterator[RankMark]) -> None:
        for rank, mark in told:
            if gang.alive[rank]:
                self._emit(gang.key, rank, mark)
                if mark.k == "saved" and mark.n is not None:
                    self._durable[gang.key[0]] = mark.n
                elif mark.k == "exit":
                    gang.alive[rank] = False

    def _emit(self, key: Key, rank: int, mark: Mark) -> None:
        marks = self._journal[key][rank]
        marks.append(mark)
        if (key, rank) in self._reports.silent:
            return
        at = self._saved_at.get((key, rank), len(self._out) - 1)
        last = self._out[at] if self._out else None
        if isinstance(last, RankMarks) and (last.job, last.attempt, last.rank) == (*key, rank):
            self._out[at] = RankMarks(*key, rank, last.first, (*last.marks, mark))
        else:
            if self._saves_alone:
                self._saved_at[key, rank] = len(self._out)
            self._out.append(RankMarks(*key, rank, len(marks) - 1, (mark,)))

    def _tell_use(self, gang: SimGang) -> None:
        since_ns = self._clock.now_ns() if gang.quiet_since_ns is None else gang.quiet_since_ns
        use: Use = "busy" if gang.quiet_since_ns is None else "quiet"
        text = ""
        if not gang.measurable:
            use, text = "unknown", "this simulated gang is not measured"
        if use != self._uses[gang.key]:
            self._uses[gang.key] = use
            self._out.append(Utilised(*gang.key, use, since_ns, text))

    def _change(self, change: HealthChange) -> None:
        self._out.append(change)
        self._changed[change.target] = change

    def _befall(self, what: Befalls, at_ns: int) -> None:
        if isinstance(what, Silent):
            self._silence(what)
            return
        self._out.append(what)
        if isinstance(what, NodesChanged):
            self._fleet = with_nodes(self._fleet, what)
        gang = self._gangs.get((what.job, what.attempt)) if isinstance(what, Disrupted) else None
        if gang is not None:
            self._hear(gang, gang.advance(at_ns))
            self._hear(gang, gang.halt(at_ns))
            killed = [(k, Mark("exit", at_ns, code=KILLED)) for k, alive in enumerate(gang.alive) if alive]
            self._hear(gang, iter(killed))
            self._settle(gang)

    def _silence(self, what: Silent) -> None:
        """From now on the ranks' marks stay with them; at the end of it they come first."""
        key, silent = (what.job, what.attempt), self._reports.silent
        journal = self._journal.get(key)
        if journal is None:
            return
        for rank in (rank for rank in what.ranks if rank < len(journal)):
            if what.since_ns:
                silent.setdefault((key, rank), len(journal[rank]))
                continue
            known = silent.pop((key, rank), None)
            if known is not None and len(journal[rank]) > known:
                self._out.append(RankMarks(*key, rank, known, tuple(journal[rank][known:])))
        self._out.append(what)

    # -- faults ----------------------------------------------------------------------------------

    def _break(self, fault: NodeFault) -> None:
        seen_ns = fault.at_ns + self._detect_ns
        if self._detect_ns:
            self._unseen[fault.node] = None
            heapq.heappush(self._coming, (seen_ns, next(self._order), fault, False))
        heapq.heappush(self._coming, (max(fault.repaired_ns, seen_ns), next(self._order), fault, True))
        if self._detect_ns:
            for key in list(self._on_node.get(fault.node, ())):
                gang = self._gangs[key]
                self._hear(gang, gang.advance(fault.at_ns))
                self._hear(gang, gang.halt(fault.at_ns))
                self._settle(gang)
        else:
            self._see(fault)
        self._copies.broke(fault.node)

    def _see(self, fault: NodeFault) -> None:
        """The node is seen to be down, and its ranks to be dead since it broke."""
        at_ns, node, _, component = fault
        self._unseen.pop(node, None)
        because = Reason("sim_fault", f"simulated fault of node {node}")
        if component:
            because = Reason("sim_fault", f"{because.text}: {component}", {"component": component})
        self._change(HealthChange(node, "fault", because))
        for key in list(self._on_node.get(node, ())):
            gang = self._gangs[key]
            self._hear(gang, gang.advance(at_ns))
            self._hear(gang, gang.halt(at_ns))
            for place in gang.command.places:
                if place.node == node and gang.alive[place.rank]:
                    begun = self._journal[key][place.rank]
                    died_ns = max(at_ns, begun[0].t) if begun else at_ns
                    self._hear(gang, iter([(place.rank, Mark("exit", died_ns, code=KILLED))]))
            self._settle(gang)

    def _gang(self, command: StartGang, job: SimJob) -> SimGang:
        """The gang, from its last save, or from its peers' memory where that has more of it."""
        now_ns, base = self._clock.now_ns(), self._durable.get(command.job, 0)
        copied = self._copies.step(command.job) if job.copy_every else 0
        if copied > base:
            job, base = replace(job, restore_ns=job.copy_restore_ns), copied
        return (SteadyGang if job.steady else SimGang)(command, job, now_ns, base)

    def _keep_copies(self, gang: SimGang) -> None:
        step = gang.copied_step
        if step is not None:
            self._copies.keep(gang.key, step, (place.node for place in gang.command.places))
