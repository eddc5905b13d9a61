"""Commands to the engine: made from the view, and kept until the decisions that they follow from are in the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unidle.clock import Clock
from unidle.control.nodes.maintenance import NodeMaintenance
from unidle.engine.protocol import CheckpointLook, Engine, LiveAttempt, PartOf, StartGang, StopGang, WatchGang
from unidle.events import types as ev
from unidle.fleet import device_of
from unidle.jobs import Reason
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View
from unidle.words import counted, does


class EngineCommands:
    """The commands of one controller. They are idempotent: a controller that takes over sends them again."""

    def __init__(self, engine: Engine, clock: Clock, view: View, nodes: NodeMaintenance) -> None:
        self._engine, self._clock, self._view, self._nodes = engine, clock, view, nodes
        self._queued: list[Callable[[], None]] = []
        self._behind: set[str] = set()  # jobs on devices that a filler has yielded and not left yet

    @property
    def waits(self) -> bool:
        """Whether there is a command to send."""
        return bool(self._queued)

    def send(self) -> None:
        """Send what was queued. Call it after the log is written."""
        queued, self._queued = self._queued, []
        for command in queued:
            command()

    def call(self, command: Callable[[], None]) -> None:
        """Queue anything else that has to wait for the log."""
        self._queued.append(command)

    def adopt(self, jobs: list[JobView]) -> None:
        """Have the engine follow, at once, what runs of these jobs. Those whose nodes are checked first have not begun."""
        begun = [job for job in jobs if not self.is_held(job, job.attempts[-1])]
        self._engine.adopt([live_attempt(self._view, job, job.attempts[-1]) for job in begun])

    def start(self, job: JobView, attempt: AttemptView) -> None:
        if not self.is_held(job, attempt):
            command = start_of(self._view, job, attempt)
            self.call(lambda: self._engine.start(command))
        elif self._view.fillers.is_in_use(attempt):
            self._behind.add(job.id)

    def start_behind(self) -> None:
        """A filler has left its devices: start those that only waited for that."""
        behind, self._behind = sorted(self._behind), set()
        for name in behind:
            job = self._view.jobs.open.get(name)
            if (
                job is not None
                and job.live is not None
                and job.live.stop is None
                and not job.live.all_spawned
            ):
                self.start(job, job.live)

    def is_held(self, job: JobView, attempt: AttemptView) -> bool:
        """Whether its nodes are checked first, or a filler has still to leave them: none of its ranks has begun then."""
        if attempt.stop is not None or attempt.all_spawned:
            return False
        checked_first = self._nodes.holds(self._view, job, attempt)
        return checked_first or (self._view.fillers.is_in_use(attempt) and not any_spawned(attempt))

    def stop(self, job: JobView, attempt: AttemptView) -> None:
        """Stop an attempt for which that is decided, in what is left of its grace."""
        if attempt.stop is not None:
            passed_ns = self._clock.now_ns() - (attempt.stop_ns or 0)
            self._stop(job, attempt, max(attempt.stop.grace_ns - passed_ns, 0))

    def kill(self, job: JobView) -> None:
        """Shorten the grace of a stop that is under way to nothing."""
        if job.live is not None:
            self._stop(job, job.live, 0)

    def _stop(self, job: JobView, attempt: AttemptView, grace_ns: int) -> None:
        command = StopGang(job.id, attempt.number, len(attempt.ranks), grace_ns)
        self.call(lambda: self._engine.stop(command))

    def release(self, job: str, attempt: int) -> None:
        """The attempt has ended."""
        self.call(lambda: self._engine.release(job, attempt))

    def finish(self, job: str) -> None:
        """The job has ended."""
        self.call(lambda: self._engine.finish(job))

    def watch(self, command: WatchGang) -> None:
        """Measure the devices of a gang from now on, or no longer."""
        self.call(lambda: self._engine.watch(command))


def any_spawned(attempt: AttemptView) -> bool:
    """Whether a process of the attempt has begun."""
    return any(rank.spawn_ns is not None for rank in attempt.ranks)


def start_of(view: View, job: JobView, attempt: AttemptView) -> StartGang:
    """The command that starts an attempt, with what its parts of devices are."""
    parts = {}
    if view.cuttable_nodes():
        ids = [slice_id for place in attempt.places for slice_id in place.slices]
        parts = {slice_id: part for slice_id in ids if (part := _part(view, slice_id)) is not None}
    if job.spec.checkpoint_path is None or view.modelled:
        return StartGang(job.id, attempt.number, job.spec, attempt.places, parts)
    from unidle.guard.mttf import rates_of  # only where the job saves

    rates = rates_of(view, job)
    return StartGang(job.id, attempt.number, job.spec, attempt.places, parts, rates.mttf_s, rates.restart_s)


def live_attempt(view: View, job: JobView, attempt: AttemptView) -> LiveAttempt:
    """The attempt as an engine adopts it."""
    command = start_of(view, job, attempt)
    return LiveAttempt(command, tuple(r.count for r in attempt.ranks), tuple(r.ended for r in attempt.ranks))


def _part(view: View, slice_id: str) -> PartOf | None:
    device = view.cuttable(device_of(slice_id))
    if device is None or device.cut is None:
        return None
    name = slice_id.partition("#")[2]
    part = next((p for p in device.cut.parts if p.name == name), None)
    return None if part is None else PartOf(device.id, device.cut.mode, part)


def left(view: View, attempt: AttemptView) -> list[ev.DeviceCut]:
    """The cuts of devices that an attempt, which has ended, had parts of: what it left joins the rest."""
    if not view.cuttable_nodes():
        return []
    gone: dict[str, set[str]] = {}
    for slice_id in (s for place in attempt.places for s in place.slices):
        if _part(view, slice_id) is not None:
            gone.setdefault(device_of(slice_id), set()).add(slice_id)
    return [cut for name, slices in gone.items() if (cut := _without(view, name, slices)) is not None]


def _without(view: View, device_id: str, gone: set[str]) -> ev.DeviceCut | None:
    from unidle.share.parts import without_parts  # not needed where nothing is cut

    device = view.cuttable(device_id)
    if device is None:
        return None
    cut = without_parts(device, gone)
    users = sum(bool(part.job) for part in cut.parts)
    text = (
        f"{counted(users, 'other')} still {does(users, 'use')} it: the part joins the free rest"
        if users
        else "the device is unused: it is whole again"
    )
    return ev.DeviceCut(device_id, cut, Reason("part_left", text, {"users": users}))


def bad_checkpoint(seen: CheckpointLook) -> ev.CheckpointBad:
    """The event for a checkpoint that was found bad."""
    text = f"checkpoint {Path(seen.path).name} is bad: {seen.because}"
    if seen.moved_to:
        text += f"; moved to {seen.moved_to}"
    return ev.CheckpointBad(seen.job, seen.attempt, seen.path, Reason("checkpoint_bad", text), seen.step)
