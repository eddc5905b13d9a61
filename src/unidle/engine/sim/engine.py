"""The simulated engine: the live loop with a virtual clock and gangs that only pretend to run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import msgspec

from unidle.clock import VirtualClock
from unidle.engine.protocol import HealthChange, LiveAttempt, Observation, RankMarks, StartGang, StopGang
from unidle.engine.sim.workload import Happening, Workload, happenings
from unidle.events.marks import Mark
from unidle.fleet import Fleet
from unidle.jobs import Reason


@dataclass(slots=True)
class _Gang:
    command: StartGang
    start_ns: int
    story: Iterator[Happening]
    alive: list[bool]
    upcoming: Happening | None = None


class SimEngine:
    """Implements the ``Engine`` protocol of ``unidle.engine.protocol``.

    ``faults`` are node faults as ``(at_ns, node, repaired_ns)``: the node's gangs lose their ranks
    there with code -9, and the node is down until it is repaired. The engine outlives a controller:
    hand it to the next one, as real processes are.
    """

    def __init__(
        self,
        fleet: Fleet,
        clock: VirtualClock,
        workload: Workload,
        faults: Iterable[tuple[int, str, int]] = (),
    ) -> None:
        self._fleet, self._clock, self._workload = fleet, clock, workload
        self._gangs: dict[tuple[str, int], _Gang] = {}
        self._durable: dict[str, int] = {}
        self._order = count()
        self._heap: list[tuple[int, int, tuple[str, int] | HealthChange]] = []
        self._journal: dict[tuple[str, int], list[list[Mark]]] = {}
        self._out: list[Observation] = []
        self._changed: dict[str, HealthChange] = {}  # by node, the last
        for at_ns, node, repaired_ns in faults:
            down = HealthChange(node, "fault", Reason("sim_fault", f"simulated fault of node {node}"))
            up = HealthChange(node, "healthy", Reason("sim_repair", f"node {node} was repaired"))
            heapq.heappush(self._heap, (at_ns, next(self._order), down))
            heapq.heappush(self._heap, (repaired_ns, next(self._order), up))

    def fleet(self) -> Fleet:
        return self._fleet

    def adopt(self, live: Sequence[LiveAttempt]) -> None:
        """Report again what the log does not know yet of gangs that still run, and what is down."""
        self._out[:] = self._changed.values()
        alive = {(attempt.command.job, attempt.command.attempt) for attempt in live}
        for ended in set(self._journal) - alive:  # the last controller died before it could let go of them
            self.release(*ended)
        for attempt in live:
            key = (attempt.command.job, attempt.command.attempt)
            for rank, marks in enumerate(self._journal.get(key, ())):
                known = attempt.marks_known[rank]
                if len(marks) > known:
                    self._out.append(RankMarks(*key, rank, known, tuple(marks[known:])))

    def start(self, command: StartGang) -> None:
        key = (command.job, command.attempt)
        if key in self._journal:
            return
        ranks = len(command.places)
        self._journal[key] = [[] for _ in range(ranks)]
        story = happenings(command, self._workload(command), self._durable.get(command.job, 0))
        self._gangs[key] = _Gang(command, self._clock.now_ns(), story, [True] * ranks)
        self._schedule(key)

    def stop(self, command: StopGang) -> None:
        key = (command.job, command.attempt)
        now = self._clock.now_ns()
        gang = self._gangs.pop(key, None)
        if gang is not None:
            ended = [rank for rank, alive in enumerate(gang.alive) if alive]
            marks = [Mark("exit", now, code=-15) for _ in ended]
        elif key not in self._journal:
            self._journal[key] = [[] for _ in range(command.ranks)]
            ended = list(range(command.ranks))
            marks = [Mark("lost", now, text="never started") for _ in ended]
        else:
            return
        for rank, mark in zip(ended, marks, strict=True):
            self._emit(key, rank, mark)

    def release(self, job: str, attempt: int) -> None:
        self._journal.pop((job, attempt), None)
        self._gangs.pop((job, attempt), None)

    def poll(self) -> Sequence[Observation]:
        now = self._clock.now_ns()
        while self._heap and self._heap[0][0] <= now:
            at_ns, _, what = heapq.heappop(self._heap)
            if isinstance(what, HealthChange):
                self._health(what, at_ns)
            elif what in self._gangs:
                self._tell(what, at_ns)
        out, self._out = self._out, []
        return out

    def wait(self, until_ns: int | None) -> None:
        """Jump to the next happening, or to ``until_ns`` where that comes first."""
        next_ns = self._heap[0][0] if self._heap else None
        if self._out:
            return
        times = [t for t in (next_ns, until_ns) if t is not None]
        if times:
            self._clock.advance_to(min(times))

    @property
    def idle(self) -> bool:
        """Nothing will ever happen again by itself."""
        return not self._heap and not self._out

    def close(self) -> None:
        """Simulated gangs need no one to hold them."""

    def _schedule(self, key: tuple[str, int]) -> None:
        """Put the gang's next happening on the heap."""
        gang = self._gangs[key]
        gang.upcoming = next(gang.story, None)
        if gang.upcoming is not None:
            heapq.heappush(self._heap, (gang.start_ns + gang.upcoming.after_ns, next(self._order), key))

    def _tell(self, key: tuple[str, int], at_ns: int) -> None:
        """Report what the gang does at ``at_ns``."""
        gang = self._gangs[key]
        happening = gang.upcoming
        while happening is not None and gang.start_ns + happening.after_ns <= at_ns:
            if gang.alive[happening.rank]:
                mark = happening.mark
                self._emit(key, happening.rank, msgspec.structs.replace(mark, t=at_ns))
                if mark.k == "saved" and mark.n is not None:
                    self._durable[key[0]] = mark.n
                if mark.k == "exit":
                    gang.alive[happening.rank] = False
            happening = gang.upcoming = next(gang.story, None)
        if happening is not None:
            heapq.heappush(self._heap, (gang.start_ns + happening.after_ns, next(self._order), key))

    def _emit(self, key: tuple[str, int], rank: int, mark: Mark) -> None:
        marks = self._journal[key][rank]
        marks.append(mark)
        last = self._out[-1] if self._out else None
        if isinstance(last, RankMarks) and (last.job, last.attempt, last.rank) == (*key, rank):
            self._out[-1] = RankMarks(*key, rank, last.first, (*last.marks, mark))
        else:
            self._out.append(RankMarks(*key, rank, len(marks) - 1, (mark,)))

    def _health(self, change: HealthChange, at_ns: int) -> None:
        self._out.append(change)
        self._changed[change.target] = change
        if change.health == "healthy":
            return
        for key, gang in self._gangs.items():
            for place in gang.command.places:
                if place.node == change.target and gang.alive[place.rank]:
                    gang.alive[place.rank] = False
                    self._emit(key, place.rank, Mark("exit", at_ns, code=-9))
