"""The engine of one machine: starts, follows, stops and adopts ranks that are local processes."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.clock import RealClock
from unidle.engine.local import launch
from unidle.engine.local.event_marks import EventMarks
from unidle.engine.local.gang_starts import GangStarts
from unidle.engine.local.ranks import cgroups, descriptors, rundir
from unidle.engine.local.ranks.rank_watch import Logged, RankWatch
from unidle.engine.local.ranks.supervisors import Supervisors
from unidle.engine.local.sidecars.gang_sidecars import GangSidecars
from unidle.engine.protocol import (
    CheckpointLook,
    LiveAttempt,
    RankMarks,
    StartGang,
    StopGang,
    Utilised,
    WatchGang,
)
from unidle.errors import BadInput
from unidle.fleet import Fleet, is_cuttable
from unidle.jobs.spec import is_job_id
from unidle.jobs.vitals import GangVitals

if TYPE_CHECKING:
    from unidle.engine.local.devices.slicing import Grant, Slicer
    from unidle.engine.local.vitals.sampler import VitalsWatch
    from unidle.engine.local.vitals.utilisation import Utilisation

STARTING_TICK_MS = 10
STEADY_TICK_MS = 500
_STEADY_NS: Final = STEADY_TICK_MS * 1_000_000
SETTLED_NS = 10_000_000_000  # a gang that shows no steps has started, most likely
LOOK_AFTER_NS = 200_000_000  # a run that is over before needs no watch, nor the time to load it


@dataclass(slots=True)
class _Gang:
    watches: list[RankWatch]
    to_launch: StartGang | None = None  # ranks may have to be started
    nodes: tuple[str, ...] = ()  # where each rank is
    pids: dict[int, int] = field(default_factory=dict)  # by rank, as far as they are alive
    command: StartGang | None = None  # of a job that wants its restarts warm
    alive_ns: int = 0  # since when all its ranks are there
    first_ns: int = 0  # since when one of them is
    followed: bool = False  # whether those in pids are looked at
    under_way: bool = False  # it showed a step
    prepared: bool = False

    def take(self, command: StartGang) -> None:
        """Keep what is needed of the command after the start."""
        self.nodes = tuple(place.node for place in command.places)
        self.command = command if command.spec.restart.warm else None


class LocalEngine:
    """Runs gangs on this machine (``unidle.engine.protocol.Engine``).

    ``run_root`` holds one directory per job and attempt (``unidle.engine.local.ranks.rundir``). Each rank
    is started by a supervisor process that outlives this one; a process that opens an engine on the same
    ``run_root`` later can adopt what still runs. The lock of a rank's directory, which passes from
    the engine to the supervisor it starts, makes sure that no rank is started twice. ``slicer`` makes
    slices of devices real (NVIDIA's tools and control groups where it is not given).
    """

    modelled: Final = False

    def __init__(self, run_root: Path, fleet: Fleet, clock: RealClock, slicer: Slicer | None = None) -> None:
        self._root = Path(run_root).absolute()
        self._fleet = fleet
        self._spaces = {node.id: node.netns for node in fleet.nodes if node.netns}
        self._clock = clock
        self._gangs: dict[tuple[str, int], _Gang] = {}
        self._supervisors = Supervisors()
        self._name = cgroups.group_name(str(self._root))
        self._slicer = slicer
        self._has_cuts = any(is_cuttable(device) for device in fleet.devices())
        self._uses: Utilisation | None = None
        self._vitals: VitalsWatch | None = None
        self._sidecars = GangSidecars(self._root, fleet, self._spaces)
        self._starts = GangStarts(self._root, fleet, clock, self._name, self._supervisors, self._grants)
        self._read_ns = 0

    def fleet(self) -> Fleet:
        """The fleet that the engine was given; of the ways to cut its GPUs those that this machine offers."""
        if not any(d.sharing is not None and d.kind == "gpu" for d in self._fleet.devices()):
            return self._fleet
        return self._slices().offered()

    def import_once(self, modules: Sequence[str]) -> None:
        """From now on, gangs with warm starts have a warm Python from their first start on, which imports these."""
        self._starts.imports = tuple(modules)

    def capabilities(self) -> dict[str, str]:
        """What this machine lets the engine do with a rank, in words."""
        return cgroups.capabilities(self._groups, self._name)

    def adopt(self, live: Sequence[LiveAttempt]) -> None:
        """Adopt attempts of an earlier engine; ranks that no one began start at the first poll.

        To keep those from starting, stop the attempt before the first poll.
        """
        for attempt in live:
            command = attempt.command
            gang = self._gang(command.job, command.attempt, len(command.places), attempt)
            gang.to_launch = command
            gang.take(command)
            self._sidecars.prepare(command)
            if self._is_cut(command):
                self._slices().adopt(command.job, command.attempt)
        if (self._root / rundir.SLICES).exists():
            self._slices().keep([(one.command.job, one.command.attempt) for one in live])

    def start(self, command: StartGang) -> None:
        """Start the ranks that no one has begun; failures arrive as marks."""
        known = (command.job, command.attempt) in self._gangs
        gang = self._gang(command.job, command.attempt, len(command.places))
        if not known and (why := descriptors.shortage(len(gang.watches))) is not None:
            for watch in gang.watches:
                watch.refuse(self._clock.now_ns(), why)
            return
        gang.take(command)
        self._sidecars.prepare(command)
        if command.attempt > 1 and self._is_fresh(gang):
            self._sidecars.look(command)
            gang.to_launch = command
        if self._waits(command):
            gang.to_launch = command
        else:
            self._launch(gang, command)

    def stop(self, command: StopGang) -> None:
        """Ask the supervisors to end their ranks; they do so even if this process ends now."""
        for watch in self._gang(command.job, command.attempt, command.ranks).watches:
            watch.ask_stop(command.grace_ns, self._clock.now_ns())
            self._supervisors.follow(watch)

    def watch(self, command: WatchGang) -> None:
        """Begin or cease to measure whether an attempt's devices are used; read at each :meth:`poll`."""
        if self._uses is None:  # imported here, because most jobs show steps
            from unidle.engine.local.vitals.utilisation import Utilisation

            self._uses = Utilisation(self._fleet, self._watches)
        self._uses.watch(command)

    def _watches(self, key: tuple[str, int] | None) -> list[RankWatch]:
        """The ranks of an attempt; of all with None."""
        if key is None:
            return [watch for gang in self._gangs.values() for watch in gang.watches]
        gang = self._gangs.get(key)
        return gang.watches if gang else []

    def release(self, job: str, attempt: int) -> None:
        """Forget an attempt that has ended; its logs and journals stay."""
        self._forget(job, attempt)
        if self._uses is not None:
            self._uses.forget((job, attempt))
        if self._vitals is not None:
            self._vitals.forget((job, attempt))
        if self._slicer is not None:
            self._slicer.release(job, attempt)

    def finish(self, job: str) -> None:
        """End what outlives a job's attempts."""
        self._sidecars.finish(job)

    def keep(self, jobs: Collection[str]) -> None:
        """End what an earlier engine left for jobs other than these."""
        self._sidecars.keep(jobs)

    def _is_fresh(self, gang: _Gang) -> bool:
        """Whether no rank of it was begun, by this engine or an earlier one."""
        now_ns = self._clock.now_ns()
        for watch in gang.watches:
            watch.look(now_ns)
            self._supervisors.follow(watch)
        return all(watch.state == "unstarted" for watch in gang.watches)

    def freeze(self, job: str, attempt: int) -> bool:
        """Keep every process of an attempt from running, until :meth:`thaw`; True when all are stopped."""
        frozen = True
        for watch in self._alive(job, attempt):
            if not watch.group.freeze():
                watch.signal_tree(signal.SIGSTOP)
                frozen = False
        return frozen

    def thaw(self, job: str, attempt: int) -> None:
        """Let the processes of an attempt run again."""
        for watch in self._alive(job, attempt):
            watch.group.thaw()
            watch.signal_tree(signal.SIGCONT)

    def poll(self) -> list[RankMarks | Utilised | GangVitals | CheckpointLook]:
        """New marks of all ranks, the ends of those whose supervisor died, and how the others are.

        What steady ranks left is read with each look at them, and else every :data:`STEADY_TICK_MS`, however often this
        is called.
        """
        ended = self._supervisors.ended()
        for watch in ended:
            watch.died()
        looks = self._vitals.take() if self._vitals is not None else ()
        now_ns = self._clock.now_ns()
        found: list[RankMarks | Utilised | GangVitals | CheckpointLook] = []
        if ended or looks or self._busy or now_ns - self._read_ns >= _STEADY_NS:
            self._read_ns = now_ns
            for key, gang in self._gangs.items():
                found += self._read(key, gang, now_ns)
            self._supervisors.clean()
        if self._uses is not None:
            found += self._uses.poll(now_ns)
        return [*found, *looks, *self._sidecars.poll()]

    def _read(self, key: tuple[str, int], gang: _Gang, now_ns: int) -> Iterator[RankMarks]:
        """What the gang's ranks left, and what is to be done for it."""
        if gang.to_launch and not self._waits(gang.to_launch):
            self._launch(gang, gang.to_launch)
        for watch in gang.watches:
            self._advance(watch, now_ns)
            for first, marks in watch.news():
                gang.under_way = gang.under_way or any(mark.k == "step" for mark in marks)
                yield RankMarks(*key, watch.rank, first, marks)
                self._sidecars.saw(key[0], marks)
        self._follow_vitals(key, gang, now_ns)
        if gang.command is not None:
            self._keep_warm(gang, now_ns)

    @property
    def _busy(self) -> bool:
        """Whether something is expected within milliseconds."""
        return self._sidecars.busy or any(watch.unsettled for watch in self._watches(None))

    def _follow_vitals(self, key: tuple[str, int], gang: _Gang, now_ns: int) -> None:
        """Start to observe the gang's processes, soon after the first of them has started."""
        pids = {w.rank: w.spawned for w in gang.watches if w.state == "alive" and w.spawned is not None}
        if pids != gang.pids:
            gang.pids, gang.followed = pids, False
        if gang.followed:
            return
        if self._vitals is None:
            gang.first_ns = gang.first_ns or now_ns
            if not pids or now_ns - gang.first_ns < LOOK_AFTER_NS:
                return
            from unidle.engine.local.vitals.reachability import Reachability
            from unidle.engine.local.vitals.sampler import VitalsWatch

            addresses = {node.id: node.address for node in self._fleet.nodes if node.address}
            self._vitals = VitalsWatch(self._clock.offset_ns, lambda: Reachability(self._spaces, addresses))
        gang.followed = True
        self._vitals.follow(key, pids, gang.nodes)

    def wait(self, until_ns: int | None) -> None:
        """Return when a supervisor has ended, after a short tick, or at ``until_ns``."""
        timeout_ms = STARTING_TICK_MS if self._busy else STEADY_TICK_MS
        if until_ns is not None:
            left_ns = max(0, until_ns - self._clock.now_ns())
            timeout_ms = min(timeout_ms, -(-left_ns // 1_000_000))  # too early would be once more
        self._supervisors.wait(timeout_ms)

    def close(self) -> None:
        """Let go of every rank without touching it."""
        if self._vitals is not None:
            self._vitals.close()
        self._starts.close()
        self._sidecars.close()
        for job, attempt in list(self._gangs):
            self._forget(job, attempt)
        self._supervisors.clean()

    def _is_cut(self, command: StartGang) -> bool:
        """Whether ranks of the gang may get parts of devices."""
        return self._has_cuts or command.spec.share is not None

    def _grants(self, command: StartGang) -> list[Grant] | None:
        """What each rank gets of its devices; None where all have whole ones."""
        if not self._is_cut(command):
            return None
        from unidle.engine.local.devices.slicing import wish_of

        return self._slices().grants(wish_of(command))

    def _slices(self) -> Slicer:
        if self._slicer is None:  # imported here, because most jobs have whole devices
            from unidle.engine.local.devices.slicing import local_slicer

            self._slicer = local_slicer(str(self._root), self._fleet, self._name)
        return self._slicer

    def _forget(self, job: str, attempt: int) -> None:
        gang = self._gangs.pop((job, attempt), None)
        for watch in gang.watches if gang else ():
            self._supervisors.unfollow(watch)
            watch.let_go()

    @cached_property
    def _groups(self) -> dict[str, str]:
        return cgroups.detect(self._name)

    def _gang(self, job: str, attempt: int, ranks: int, live: LiveAttempt | None = None) -> _Gang:
        gang = self._gangs.get((job, attempt))
        if gang is None:
            _check_name(job)
            watches = [self._watch(job, attempt, rank, _logged(live, rank)) for rank in range(ranks)]
            gang = self._gangs[job, attempt] = _Gang(watches)
        return gang

    def _watch(self, job: str, attempt: int, rank: int, logged: Logged | None) -> RankWatch:
        directory = rundir.rank_dir(self._root, job, attempt, rank)
        groups = cgroups.group_paths(self._groups, self._name, f"{job}.{attempt}.{rank}")
        return RankWatch(
            directory, rank, launch.run_id(self._name, job, attempt), groups, EventMarks(), logged
        )

    def _launch(self, gang: _Gang, command: StartGang) -> None:
        gang.to_launch = command if self._starts.start(command, gang.watches) else None

    def _waits(self, command: StartGang) -> bool:
        """Whether a start has to wait for the look at its checkpoint, or does so for a warm Python."""
        return self._sidecars.holds(command.job, command.attempt) or self._starts.is_near(command)

    def _keep_warm(self, gang: _Gang, now_ns: int) -> None:
        """Once a gang with warm starts is under way, prepare its next start."""
        command = gang.command
        if command is None or gang.prepared or len(gang.pids) < len(gang.watches):
            return
        gang.alive_ns = gang.alive_ns or now_ns
        if not gang.under_way and now_ns - gang.alive_ns < SETTLED_NS:
            return
        gang.prepared = True
        self._starts.prepare_warm(command)

    def _advance(self, watch: RankWatch, now_ns: int) -> None:
        was_ended = watch.state == "ended"
        watch.advance(now_ns)
        self._supervisors.follow(watch)
        if watch.state == "ended" and not was_ended:
            self._supervisors.left(watch)

    def _alive(self, job: str, attempt: int) -> Iterator[RankWatch]:
        yield from (w for w in self._watches((job, attempt)) if w.state == "alive")


def _logged(live: LiveAttempt | None, rank: int) -> Logged | None:
    """What the log has of a rank; None where no earlier engine had its attempt."""
    if live is None:
        return None
    known, ended = live.marks_known, live.ended
    return Logged(known[rank] if rank < len(known) else 0, rank < len(ended) and ended[rank])


def _check_name(job: str) -> None:
    if not is_job_id(job):
        raise BadInput(
            "not usable as a directory name", field="job", value=job, remedy="use letters, digits, - and _"
        )
