"""One round of decisions over all queues: who starts, who is stopped for whom, who waits and why.

The queue whose turn it is offers its jobs in order. A job starts where its queue may use more and
the nodes hold it; where it has the right to, room is made by stopping others and held for it; else
it waits, the first ones with room reserved for them, which no later job may delay.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from unidle.jobs import Reason
from unidle.place.actions.make_room import Stopping, consolidate
from unidle.place.actions.reserve import QuotaReservations
from unidle.place.actions.slices import Parts, part_free_ns, starts_in, whole_again
from unidle.place.actions.solver import Domains
from unidle.place.admission import affordable
from unidle.place.explain.queue import NoVictims, behind, refused
from unidle.place.model import Amounts, Demand, Fits, Ints, RoundRules, Running, started
from unidle.place.protocol import Preemption, Round, Start
from unidle.place.queue.backfill import FreeProfile, Planner
from unidle.place.queue.fair_share import Refusal
from unidle.place.queue.state import Allocations, PendingJobs, PendingLine
from unidle.place.queue.tree import ROOT
from unidle.place.queue.victims import Mask
from unidle.place.slices.fit import PARTS_WAIT
from unidle.words import are, counted

AtOnce: TypeAlias = Callable[[Demand, Ints | None], Mapping[int, int] | None]
"""``at_once(demand, room)``: devices by node on which the job could start now, using no more than ``room`` where
that is given (ranks by node); None where it could not."""
ByPlace: TypeAlias = Callable[[Demand], Amounts | None]
"""``by_place(demand)``: what the job would be charged where it could start now but for its quota, or None."""
FromSpares: TypeAlias = Callable[[Demand], Preemption | None]
"""``from_spares(demand)``: whom of those that fill spares to stop for a job that comes back, or None."""

LOOK_AGAIN_NS: Final = 60_000_000_000  # after a move that did not pay, at the earliest
LOOKS: Final = 8  # in the time that a job waits
_OTHERWISE: Final = frozenset({"behind", "gathering", "consolidate"})  # waits for something else than room
_Class: TypeAlias = tuple[str, str, int, int, Amounts, str, Hashable]


def decide(
    state: Allocations, waiting: PendingJobs, fits_of: Callable[[Demand], Fits], now_ns: int, rules: RoundRules | None = None, *,
    capacity: Amounts | None = None, domains_of: Callable[[Demand], Domains | None] | None = None,
    allowed_of: Callable[[Demand], Mask | None] | None = None,
    fits_of_running: Callable[[Running], Fits] | None = None, ready: Callable[[str], bool] = lambda _: True,
    at_once: AtOnce | None = None, on_start: Callable[[Start], None] = lambda _: None, parts: Parts | None = None,
    others_of: Callable[[Demand], Sequence[Demand]] | None = None, by_place: ByPlace = lambda _: None,
    as_started: Callable[[Running], Running] = lambda run: run,
    wants_time: Callable[[str], bool] = lambda _: True, settle: bool = True,
    from_spares: FromSpares = lambda _: None,
) -> Round:  # fmt: skip
    """Decide on all waiting jobs. ``state`` and ``waiting`` are changed as decided.

    The caller has to add stopped jobs to ``waiting`` when they have ended.

    - ``domains_of`` and ``allowed_of`` are those of ``actions.preempt.preempt_all``; ``fits_of_running`` is needed for
      consolidation.
    - ``ready``: whether the devices held for a job are really free by now.
    - ``at_once``: where a job could start now; replaces ``fits_of`` on what is free.
    - ``on_start`` is called immediately for each start.
    - ``parts`` handles parts of devices, and is needed if a demand is for parts.
    - ``others_of``: what a job would take instead, on another kind of devices.
    - ``by_place``: the charge of a demand whose charge depends on its place.
    - ``as_started``: the job that starts, with its actual charge.
    - ``from_spares`` is called first to make room. If it returns a preemption, it has changed the cluster.
    - ``wants_time``: for which jobs a start is predicted; it is also predicted if room is reserved.
    - Without ``settle`` all changes can be undone by the cluster's journal.
    """
    rules = rules or RoundRules()
    state.shares.begin(now_ns, capacity)
    done = Round(expired=state.expire(now_ns))
    turn = _Turn(state, waiting, fits_of, now_ns, rules, done)
    turn.domains_of, turn.allowed_of = domains_of, allowed_of
    turn.fits_of_running, turn.ready = fits_of_running, ready
    turn.on_start, turn.wants_time = on_start, wants_time
    turn.parts, turn.others_of = parts, others_of
    turn.by_place, turn.as_started, turn.from_spares = by_place, as_started, from_spares
    if at_once is not None:
        turn.at_once = at_once
    turn.run()
    if settle:
        state.log.commit()
        for start in done.starts:
            waiting.leave(start.job)
    times = [hold.expires_ns for hold in state.holds.values()]
    later = (state.shares.tree.next_window_ns(now_ns), turn.again_ns, turn.stoppable_ns())
    done.again_ns = min([*times, *(at for at in later if at is not None)], default=None)
    return done


class _Turn:
    """One round under way: what it has learned so far, so that nothing is asked twice."""

    domains_of: Callable[[Demand], Domains | None] | None = None
    allowed_of: Callable[[Demand], Mask | None] | None = None
    fits_of_running: Callable[[Running], Fits] | None = None
    ready: Callable[[str], bool]
    parts: Parts | None = None
    others_of: Callable[[Demand], Sequence[Demand]] | None = None
    by_place: ByPlace
    as_started: Callable[[Running], Running]
    from_spares: FromSpares
    again_ns: int | None = None  # when moving others may pay though it does not now
    _asked_to_move = False
    on_start: Callable[[Start], None]
    wants_time: Callable[[str], bool]

    def __init__(
        self, state: Allocations, waiting: PendingJobs, fits_of: Callable[[Demand], Fits], now_ns: int, rules: RoundRules,
        done: Round,
    ) -> None:  # fmt: skip
        self._state, self._waiting, self._fits_of = state, waiting, fits_of
        self._now_ns, self._rules, self._done = now_ns, rules, done
        self.at_once: AtOnce = self._by_devices
        self._planner: Planner | None = None
        self._stopping: Stopping | None = None
        self._reservations = QuotaReservations(state, now_ns, rules.backfill.otherwise_ns)
        self._heads: set[int] = set()  # queues whose first refused job has its quota reserved
        self._refused: dict[_Class, Reason] = {}  # jobs like this may not start, and none may stop for them
        self._no_room: set[_Class] = set()  # the nodes do not hold jobs like this, and none may stop for them
        self._no_part: set[_Class] = set()  # no device has a part for jobs like this
        self._no_spare: set[_Class] = set()  # no filler can make room for jobs like this
        self._part_ns: dict[_Class, int | None] = {}  # when a part is expected to be free for them
        self._none_stop: NoVictims[_Class] = NoVictims(state)  # nobody may be stopped for jobs like this

    def run(self) -> None:
        shares = self._state.shares
        lines: dict[int, PendingLine] = {}
        misses: dict[int, int] = {}
        while (leaf := shares.next_queue()) is not None:
            line = lines.get(leaf)
            if line is None:
                line = lines[leaf] = PendingLine(self._waiting.of(leaf, self._now_ns))
            demand = line.next()
            if demand is None or misses.get(leaf, 0) > self._rules.backfill.depth:
                shares.block(leaf)
                continue
            self._one(leaf, demand, line)
            self._say_why_nobody(demand)
            if demand.job in self._done.waits and demand.job not in self._state.holds:
                misses[leaf] = misses.get(leaf, 0) + 1

    def _say_why_nobody(self, demand: Demand) -> None:
        waits = self._done.waits.get(demand.job)
        if waits is None or waits.code in _OTHERWISE or not self.wants_time(demand.job):
            return
        why = self._none_stop.why(self._like(demand), demand)
        if why is not None and why.code != waits.code:
            self._done.nobody[demand.job] = why

    def stoppable_ns(self) -> int | None:
        """When the next job becomes stoppable for waiting jobs that found none to stop; None without such waiting jobs."""
        if not self._done.waits or not self._none_stop:
            return None
        return self._state.next_stoppable_ns(self._now_ns)

    def _one(self, leaf: int, demand: Demand, line: PendingLine) -> None:
        state = self._state
        if demand.job in state.holds:
            self._on_hold(demand)
            return
        like = self._like(demand)
        if (known := self._refused.get(like)) is not None:
            self._done.waits[demand.job] = known
            return
        if like in self._no_room or like in self._no_part:
            self._later(leaf, demand)
            return
        reserved = self._reservations.reserved(leaf, demand)
        refusal = state.shares.refusal(leaf, demand.charged, firm=demand.firm, reserved=reserved)
        if self._is_behind(leaf, demand, refusal, reserved):
            return
        if refusal is None and self._starts(demand, affordable(state.shares, leaf, demand, reserved)):
            return
        if self.others_of is None or not self._on_other_devices(leaf, demand, refusal, reserved):
            self._make_room(leaf, demand, like, refusal, line)

    def _is_behind(
        self, leaf: int, demand: Demand, refusal: Refusal | None, reserved: Mapping[int, Amounts]
    ) -> bool:
        """Whether only what is reserved for others of its queues refuses it; if so, that is why it waits."""
        shares = self._state.shares
        if not refusal or not reserved or shares.refusal(leaf, demand.charged, firm=demand.firm):
            return False
        self._done.waits[demand.job] = behind(shares.tree, refusal)
        self._done.kept_back = True
        return True

    def _on_other_devices(
        self, leaf: int, demand: Demand, refusal: Refusal | None, reserved: Mapping[int, Amounts]
    ) -> bool:
        """Start the job on another kind of devices, or let it wait for those where the first are refused to it."""
        assert self.others_of is not None
        shares = self._state.shares
        may = [
            other
            for other in self.others_of(demand)
            if shares.refusal(leaf, other.charged, firm=other.firm, reserved=reserved) is None
        ]
        if any(self._starts(demand, affordable(shares, leaf, other, reserved)) for other in may):
            return True
        if refusal is None or not may:
            return False
        self._later(leaf, may[0])
        return True

    def _starts(self, demand: Demand, as_: Demand) -> bool:
        """Start the job if it can start now. ``as_`` is its request; its charge is an upper bound."""
        devices = self._fits_now(as_)
        if devices is None:
            return False
        if self._planner is not None:
            self._planner.tell(as_, devices)
        where = f"{counted(len(devices), 'node')} with room for it"
        self._start(demand, devices, Reason("fits", where, {"nodes": len(devices)}), as_)
        return True

    def _on_hold(self, demand: Demand) -> None:
        if self.ready(demand.job):
            because = Reason("freed", "the devices held for it are free", {"devices": demand.size})
            self._start(demand, dict(self._state.holds[demand.job].devices), because)
        else:
            text = "parts of devices are held for it, and not all of them are free yet"
            if demand.ranks:
                what = f"{counted(demand.size, 'device')} {are(demand.size)} held for it"
                text = f"{what}, and {'not all of them are' if demand.size > 1 else 'it is not'} free yet"
            self._done.waits[demand.job] = Reason("gathering", text)

    def _make_room(
        self, leaf: int, demand: Demand, like: _Class, refusal: Refusal | None, line: PendingLine
    ) -> None:
        asked, reserved = demand, self._reservations.reserved(leaf, demand)
        if refusal is None and demand.ranks:
            asked, refusal = self._refused_by_place(leaf, demand, reserved)
            if self._is_behind(leaf, asked, refusal, reserved):
                return
        # stopping others neither raises a limit nor lets a firm job borrow, but for jobs of its own queue
        helps = refusal is None or refusal.rule in ("kept", "full") or demand.level == "high"
        if helps and like not in self._no_spare:
            if (made := self.from_spares(demand)) is not None:
                self._stopped(demand, made)
                return
            self._no_spare.add(like)
        # where only others' reservations are in its way, nobody is stopped
        in_the_way = refusal is None and self._fits_without_reservations(leaf, demand)
        self._done.kept_back |= in_the_way
        if helps and not in_the_way and like not in self._none_stop:
            if self._stop_for(demand, line):
                return
            self._none_stop.setdefault(like)
        if refusal is None and not demand.ranks:
            asked, refusal = self._refused_by_place(leaf, demand, reserved)
            if self._is_behind(leaf, asked, refusal, reserved):
                return
        if refusal is not None and not (refusal.rule == "full" and refusal.queue == ROOT):
            self._quota(leaf, asked, refusal, like)
            return
        if not in_the_way:
            (self._no_room if demand.ranks else self._no_part).add(like)
        self._later(leaf, demand, (self._reservations.free_ns(refusal) or 0) if refusal is not None else 0)

    def _refused_by_place(
        self, leaf: int, demand: Demand, reserved: Mapping[int, Amounts]
    ) -> tuple[Demand, Refusal | None]:
        """Whether only what it would be charged is in the way of the place that it could have now, and that charge."""
        charged = self.by_place(demand) if demand.most else None
        if charged is None:
            return demand, None
        refusal = self._state.shares.refusal(leaf, charged, firm=demand.firm, reserved=reserved)
        return (demand, None) if refusal is None else (replace(demand, charged=charged), refusal)

    def _fits_without_reservations(self, leaf: int, demand: Demand) -> bool:
        planner = self._planner
        if planner is None or not planner.reserves:
            return False
        return self.at_once(affordable(self._state.shares, leaf, demand), None) is not None

    def _quota(self, leaf: int, demand: Demand, refusal: Refusal, like: _Class) -> None:
        """The first job of a queue that its quota refuses gets the next quota; others may not delay it."""
        shares = self._state.shares
        said = shares.refusal(leaf, demand.charged, firm=demand.firm) or refusal  # without what is planned
        self._done.waits[demand.job] = why = refused(shares.tree, said)
        self._refused[like] = why
        if leaf in self._heads or refusal.asked > refusal.bound:
            return
        self._heads.add(leaf)
        start_ns = self._reservations.free_ns(refusal)
        if start_ns is not None:
            self._done.planned_ns[demand.job] = start_ns
            self._reservations.reserve(leaf, demand.charged, start_ns)

    def _parts_later(self, leaf: int, demand: Demand) -> None:
        """It waits for a part; predicted as running jobs are expected to end, each way in which that is known."""
        self._done.waits[demand.job] = PARTS_WAIT
        if not self.wants_time(demand.job) or self.parts is None:
            return
        like = self._like(demand)
        if like not in self._part_ns:
            ends = self._reservations.ends()
            self._part_ns[like] = part_free_ns(self._state, self.parts, leaf, demand, ends)
        start_ns = self._part_ns[like]
        if start_ns is not None:
            self._done.waits[demand.job] = starts_in(start_ns - self._now_ns)
            self._done.planned_ns[demand.job] = start_ns

    def _later(self, leaf: int, demand: Demand, after_ns: int = 0) -> None:
        if not demand.ranks:
            self._parts_later(leaf, demand)
            return
        planned = self._plan().later(demand, after_ns, wanted=self.wants_time(demand.job))
        self._done.waits[demand.job] = planned.because
        if planned.start_ns is not None:
            self._done.planned_ns[demand.job] = planned.start_ns
        if planned.start_ns is not None and planned.reserved:
            self._reservations.reserve(leaf, demand.charged, planned.start_ns)
            self._move_for(demand, planned.start_ns - self._now_ns)
        elif not self._rules.backfill.heads and not self._asked_to_move:
            # when others end is not known: the first to wait is expected to wait as long again
            self._move_for(demand, max(self._now_ns - demand.submitted_ns, 0))

    def _start(
        self, demand: Demand, devices: Mapping[int, int], because: Reason, as_: Demand | None = None
    ) -> None:
        # it stays in its line until the round is settled: no job is offered twice
        self._waiting.count(demand, -1)
        self._state.log.record(lambda: self._waiting.count(demand, +1))
        self._state.start(self.as_started(started(as_ or demand, devices, self._now_ns)))
        self._part_ns.clear()
        if not demand.ranks:  # others may join it on a device that they could not open
            self._no_part.clear()
            self._refused = {like: why for like, why in self._refused.items() if like[2]}
        start = Start(demand.job, devices, because)
        self._done.starts.append(start)
        self.on_start(start)

    def _like(self, demand: Demand) -> _Class:
        """The class of jobs with the same outcome as long as no job leaves; for parts also the same load and devices."""
        apart = None if demand.ranks or self.parts is None else self.parts.apart(demand.job)
        return (
            demand.queue, demand.level, demand.ranks, demand.each, demand.charged, demand.alike, apart,
        )  # fmt: skip

    def _forget(self) -> None:
        """Others leave: what was learned of those that wait is void."""
        for memo in (
            self._refused,
            self._no_room,
            self._no_part,
            self._part_ns,
            self._none_stop,
            self._no_spare,
        ):
            memo.clear()

    def _fits_now(self, demand: Demand) -> Mapping[int, int] | None:
        planner = self._planner
        if planner is None or not planner.reserves:
            return self.at_once(demand, None)
        return self.at_once(demand, planner.room_now(demand))

    def _by_devices(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """Where it could start now, where nothing but devices counts."""
        free = self._state.room(demand)
        room = free if room is None else np.minimum(free, room)
        counts = self._fits_of(demand)(room) if int(room.sum()) >= demand.ranks else None
        return (
            None if counts is None else {int(n): int(counts[n]) * demand.each for n in np.flatnonzero(counts)}
        )

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(
                self._profile, self._fits_of, self._now_ns, self._rules.backfill,
                not_before_ns=lambda demand: self._reservations.hosts_free_ns(demand, self._fits_of(demand)),
            )  # fmt: skip
        return self._planner

    def _profile(self) -> FreeProfile:
        state, otherwise_ns = self._state, self._rules.backfill.otherwise_ns
        ends = [(end_ns, run.devices) for end_ns, run in self._reservations.ends()]
        ends += [(self._now_ns + otherwise_ns, hold.devices) for hold in state.holds.values()]
        ends += whole_again(self._reservations.ends())
        return FreeProfile(state.free, self._now_ns, ends)

    def _stop_for(self, demand: Demand, line: PendingLine) -> bool:
        """Stop others for the job, and for those after it that are like it; whether that worked for it."""
        if self._stopping is None:
            self._stopping = Stopping(
                self._state, self._fits_of, self._now_ns, self._rules.hold_ns, self.domains_of, self.allowed_of,
                self.parts, lambda job: self._by_devices(job, None),
            )  # fmt: skip
        like, made = self._like(demand), self._stopping.stop_for(demand, line)
        for job, answer in made:
            if isinstance(answer, Preemption):
                self._stopped(job, answer)
            elif job.job == demand.job:
                self._none_stop[like] = answer
        return bool(made) and isinstance(made[0][1], Preemption)

    def _stopped(self, demand: Demand, answer: Preemption) -> None:
        self._done.stops.append(answer)
        self._forget()
        if self._planner is not None:
            self._planner.tell(demand, answer.hold.devices)
        victims = len(answer.victims)
        text = f"{counted(victims, 'job')} {are(victims)} stopped for it"
        self._done.waits[demand.job] = Reason("gathering", text, {"victims": len(answer.victims)})

    def _move_for(self, demand: Demand, wait_ns: int) -> None:
        """Move others where that makes room at a price below that of waiting ``wait_ns`` longer."""
        if self._rules.migration is None or self.fits_of_running is None:
            return
        self._asked_to_move = True
        domains = self.domains_of(demand) if self.domains_of else None
        answer = consolidate(
            self._state, demand, self._fits_of(demand), self.fits_of_running, self._now_ns,
            wait_ns, domains=domains, migration=self._rules.migration,
        )  # fmt: skip
        if isinstance(answer, Reason):  # prices fall with each save, and gains grow with waiting
            next_ns = self._now_ns + max(LOOK_AGAIN_NS, wait_ns // LOOKS)
            self.again_ns = min(next_ns, self.again_ns or next_ns)
            return
        self._done.moves.append(answer)
        self._done.waits[demand.job] = answer.because
        self._done.planned_ns.pop(demand.job, None)  # it need not wait for that
        self._planner = self._stopping = None  # what they know of has moved
        self._forget()
