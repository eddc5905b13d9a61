"""Conducts a drill: an undisturbed run where none is known, then the run with its faults, then what came of it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from unidle.checkpoint.find import candidates
from unidle.checkpoint.layout import is_partial
from unidle.checkpoint.verify import verify
from unidle.drill.disk import why_no_disk
from unidle.drill.end_state import Cache, EndStateDifference, compare, key_of
from unidle.drill.inject import NotYet, Undo, inject, newest_checkpoint
from unidle.drill.lab import Lab
from unidle.drill.phases import DrillOutcome, Injected, misnamed, outcomes, replayed_steps
from unidle.drill.scratch import Scratch
from unidle.drill.testbed import DISK_KINDS, POWER_KIND, Testbed
from unidle.errors import BadInput, CannotRun
from unidle.events import types as ev
from unidle.files.drill import Drill, Fault
from unidle.files.fleet_file import NodePart
from unidle.view.jobs import JobView
from unidle.words import counted

NETWORK_KINDS: Final = ("cut", "delay", "rate")
WATCH_KINDS: Final = ("kernel_log", "nvml")
_LOOK_S: Final = 0.02
_UNNAMED_S: Final = 20.0  # a fault that nobody names is undone after this
_AFTER_NAMED_S: Final = 0.5
_USUAL_S: Final = {"disk_full": 5.0, "disk_slow": 10.0, "controller_kill": 1.0, "power_cut": 1.0}
_DOWN: Final = ("controller_kill", "power_cut")  # `unidle up` runs again when they are undone

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DrillReport:
    """What a drill showed. Steps and their times (wall-clock ns) are those of the disturbed run.

    ``misnamed``: verdicts on others than those whom a fault had hurt.
    """

    outcomes: list[DrillOutcome]
    job: str
    state: str
    attempts: int
    lost_steps: int
    result: EndStateDifference | None
    seconds: float
    undisturbed_s: float
    begun_ns: int
    ended_ns: int
    steps: list[tuple[int, int]]
    why: str
    misnamed: list[str]

    @property
    def survived(self) -> bool:
        """The job succeeded with the result of an undisturbed run."""
        return self.state == "succeeded" and self.result is not None and self.result.equal

    @property
    def passed(self) -> bool:
        """It survived, every fault happened, and nothing was named but what was hurt."""
        return self.survived and all(
            o.ns.inject is not None and (o.named is None or o.correct is not False) for o in self.outcomes
        )


def refuse(drill: Drill) -> None:
    """Faults that cannot happen on this machine are refused before anything starts. Errors: :class:`CannotRun`."""
    for number, fault in enumerate(drill.faults, 1):
        why = _why_impossible(drill, fault)
        if why is not None:
            raise CannotRun(
                f"{fault.kind} is not possible here: {why}", field=f"faults[{number - 1}]",
                remedy="run as root where the kernel allows it, or leave this fault out",
            )  # fmt: skip
    if drill.job.checkpoint_path is None and drill.result is None:
        raise BadInput(
            "the job's result has no known form", field="result",
            remedy="name the file that the job writes at its end (result:), or give the job a checkpoint.path",
        )  # fmt: skip


def _why_impossible(drill: Drill, fault: Fault) -> str | None:
    if fault.kind in NETWORK_KINDS:
        if len(drill.nodes) < 2:
            return "there is one node only (nodes: 2 or more)"
        if os.geteuid() != 0:
            return "it needs root, for nodes with a network of their own"
        if shutil.which("ip") is None or shutil.which("tc") is None:
            return "it needs iproute2"
    if fault.kind in DISK_KINDS:
        return why_no_disk(slow=fault.kind == "disk_slow")
    if fault.kind == POWER_KIND:
        if any(other.kind in DISK_KINDS for other in drill.faults):
            return "it has the checkpoints on its own disk, which disk_full and disk_slow cannot share"
        return why_no_disk(slow=False, others=("unshare",))
    if fault.kind == "slow" and os.geteuid() != 0:
        return "it needs root, for control groups"
    if fault.kind in WATCH_KINDS and "watch" not in NodePart.__struct_fields__:
        return "this version has no detector for it"
    return None


def conduct(drill: Drill, cache: Cache, tell: Tell, *, store: Path | None = None) -> DrillReport:
    """Carry a drill out. ``store``: where its log stays; without it nothing stays.

    Errors: :class:`unidle.errors.CannotRun`, :class:`unidle.errors.BadInput`.
    """
    refuse(drill)
    scratch = Scratch()
    try:
        key = key_of(drill)
        known = cache.find(key)
        if known is None:
            tell("a run without faults first, for comparison")
            with _testbed(replace(drill, faults=()), scratch, "undisturbed", drill) as testbed:
                known = _undisturbed(drill, testbed, cache, key)
        tell(f"the run without faults took {known[1]:.1f} s; now with {counted(len(drill.faults), 'fault')}")
        with _testbed(drill, scratch, "drill", drill, store) as testbed:
            return _Conductor(drill, testbed, tell).run(*known)
    finally:
        scratch.close()


@contextmanager
def _testbed(
    drill: Drill, scratch: Scratch, name: str, whole: Drill, store: Path | None = None
) -> Iterator[Testbed]:
    """A testbed with what the whole drill needs, so that both runs have the same conditions."""
    kinds = {fault.kind for fault in whole.faults}
    lab = Lab(drill.nodes, scratch.lab_tag) if kinds & set(NETWORK_KINDS) else None
    try:
        testbed = Testbed(
            drill,
            scratch,
            name,
            store=store,
            lab=lab,
            disk=bool(kinds & set(DISK_KINDS)),
            power=POWER_KIND in kinds,
        )
        try:
            yield testbed
        finally:
            testbed.close()
    finally:
        if lab is not None:
            lab.close()


def _undisturbed(drill: Drill, testbed: Testbed, cache: Cache, key: str) -> tuple[Path, float]:
    begun = time.monotonic()
    while (job := testbed.look()) is None or not job.terminal:
        if time.monotonic() - begun > drill.timeout_s:
            raise CannotRun(
                f"the run without faults did not end within {drill.timeout_s:g} s", field="timeout_s",
                remedy="use a shorter job, or a larger timeout_s",
            )  # fmt: skip
        time.sleep(_LOOK_S)
    if job.state != "succeeded" or len(job.attempts) != 1:
        why = job.because.text if job.because else job.state
        raise CannotRun(f"the run without faults failed: {why}", remedy="try the job with `unidle run` first")
    spawned = [r.spawn_ns for r in job.attempts[0].ranks if r.spawn_ns is not None]
    seconds = ((job.ended_ns or 0) - min(spawned, default=0)) / 1e9
    result = _result_of(drill, testbed)
    if result is None:
        raise CannotRun(
            "the run without faults left no result", field="result", value=drill.result,
            remedy="name the file that the job writes at its end, or its checkpoints' directory",
        )  # fmt: skip
    return cache.keep(key, result, seconds), seconds


def _result_of(drill: Drill, testbed: Testbed) -> Path | None:
    if drill.result is not None:
        path = testbed.workdir / drill.result
        return path if path.exists() else None
    return newest_checkpoint(testbed)


@dataclass(slots=True)
class _Standing:
    """A fault that is in force; ``until_s``: when it is undone at the latest (monotonic)."""

    number: int
    undo: Undo
    until_s: float


@dataclass(slots=True)
class _Conductor:
    """Injects each fault at its time and undoes it."""

    drill: Drill
    testbed: Testbed
    tell: Tell
    done: dict[int, Injected] = field(default_factory=dict)
    standing: list[_Standing] = field(default_factory=list)
    chance: random.Random = field(init=False)
    why: dict[int, str] = field(default_factory=dict)
    down: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.drill.seed)

    def run(self, theirs: Path, undisturbed_s: float) -> DrillReport:
        begun, why = time.monotonic(), ""
        begun_ns = time.time_ns()
        try:
            while True:
                job = self.testbed.look(may_be_down=self.down)
                if job is not None and job.terminal:
                    break
                if time.monotonic() - begun > self.drill.timeout_s:
                    why = f"stopped after the time limit of {self.drill.timeout_s:g} s"
                    self.tell(why)
                    break
                if job is not None:
                    self._lift(job)
                    self._inject_due(job)
                time.sleep(_LOOK_S)
        finally:
            for one in self.standing:
                one.undo()
            self.down = False
        seconds = time.monotonic() - begun
        if why:
            self.testbed.close()  # cancels it
        return self._report(theirs, seconds, undisturbed_s, begun_ns, why)

    def _inject_due(self, job: JobView) -> None:
        for number, fault in enumerate(self.drill.faults):
            if number in self.done or not self._is_time(job, number, fault):
                continue
            attempt = job.attempts[-1]
            at_ns, step = time.time_ns(), job.steps()
            try:
                undo = inject(self.testbed, fault, self.chance)
            except NotYet as soon:
                self.why[number] = str(soon)
                continue
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, "stderr", None)
                self.done[number] = Injected(
                    fault, why=f"the fault could not be injected: {said.decode().strip() if said else error}"
                )
                self.tell(f"{fault.kind} {fault.target}: {self.done[number].why}")
                continue
            if fault.kind == "slow":
                at_ns = time.time_ns()  # it was measured first
            self.done[number] = self._found(Injected(fault, at_ns, attempt.number, step))
            self.tell(f"{fault.kind} {fault.target} at step {step} of attempt {attempt.number}")
            if undo is not None:
                length_s = fault.for_s if fault.for_s is not None else _USUAL_S.get(fault.kind, _UNNAMED_S)
                self.standing.append(_Standing(number, undo, time.monotonic() + length_s))
            self.down = self.down or fault.kind in _DOWN

    def _is_time(self, job: JobView, number: int, fault: Fault) -> bool:
        if not job.attempts:
            return False
        if fault.at_step is not None:
            # a look that came late must not make one of two faults that were to be apart
            earlier = (
                self.done[k].step or 0
                for k in self.done
                if (self.drill.faults[k].at_step or 0) < fault.at_step
            )
            return job.steps() >= fault.at_step and job.steps() > max(earlier, default=-1)
        if fault.at_s is not None:
            first = job.attempts[0]
            spawned_ns = max((r.spawn_ns or 0 for r in first.ranks), default=0)
            return first.all_spawned and time.time_ns() - spawned_ns >= fault.at_s * 1e9
        before = self.done.get(number - 1)
        if before is None:
            return False
        now = job.attempts[-1]
        if fault.during is not None:
            return now.number > before.attempt and now.all_spawned and now.live and now.last_step() is None
        back = now.number > before.attempt and now.last_step() is not None
        return back or (
            all(one.number != number - 1 for one in self.standing) and (job.steps() > (before.step or 0))
        )

    def _found(self, one: Injected) -> Injected:
        """The result of unidle's own check of a checkpoint that was just damaged."""
        if one.fault.kind != "corrupt_checkpoint":
            return one
        if one.fault.how == "remove":
            return replace(one, why="the checkpoint is removed; the one before it is now the newest")
        assert self.testbed.checkpoint is not None
        for path in candidates(str(self.testbed.checkpoint))[:3]:  # a newer one may have come meanwhile
            verdict = verify(path)
            if verdict.state == "bad" and not is_partial(Path(path).name):
                return replace(
                    one, found="checkpoint", found_ns=time.time_ns(), why=f"{Path(path).name}: {verdict.why}"
                )
        return replace(one, found="nothing", found_ns=time.time_ns(), why="the damage was not found")

    def _lift(self, job: JobView) -> None:
        for one in list(self.standing):
            fault = self.drill.faults[one.number]
            usual = fault.for_s is None and fault.kind not in _USUAL_S
            if usual and self._named_since(job, self.done[one.number].inject_ns or 0):
                one.until_s = min(one.until_s, time.monotonic() + _AFTER_NAMED_S)
                usual = False
            if time.monotonic() >= one.until_s:
                self.standing.remove(one)
                one.undo()
                if fault.kind in _DOWN:
                    self.down = False
                else:
                    self.tell(f"{fault.kind} {fault.target} is undone")

    @staticmethod
    def _named_since(job: JobView, since_ns: int) -> bool:
        return any(v.at_ns >= since_ns for a in job.attempts for v in a.verdicts) or any(
            a.stop_ns is not None and a.stop_ns >= since_ns for a in job.attempts
        )

    def _report(
        self, theirs: Path, seconds: float, undisturbed_s: float, begun_ns: int, why: str
    ) -> DrillReport:
        view = self.testbed.log.view
        job = view.jobs[self.testbed.job_id]
        injected = [
            self._after(self.done.get(number) or Injected(fault, why=self._why_not(number, fault)))
            for number, fault in enumerate(self.drill.faults)
        ]
        ours = _result_of(self.drill, self.testbed)
        if job.state != "succeeded":
            why = why or (job.because.text if job.because else job.state)
        result = (
            None if ours is None or job.state != "succeeded" else compare(ours, theirs, self.drill.tolerance)
        )
        steps = sorted(
            {(t, n) for a in job.attempts for r in a.ranks for t, n in zip(r.step_ns, r.step_n, strict=True)}
        )
        return DrillReport(
            outcomes(view, job, self.testbed.log.told, injected), job.id, job.state, len(job.attempts),
            replayed_steps(job), result, seconds, undisturbed_s, begun_ns, time.time_ns(), steps, why,
            misnamed(view, job, injected),
        )  # fmt: skip

    def _why_not(self, number: int, fault: Fault) -> str:
        return self.why.get(number) or f"the job ended before {fault.when}"

    def _after(self, one: Injected) -> Injected:
        """A controller that was killed is named by the one that took over from it."""
        if one.fault.kind != "controller_kill" or one.inject_ns is None:
            return one
        starts = [
            t for t, event in self.testbed.log.told if isinstance(event, ev.ControllerStarted) and t > one.inject_ns
        ]  # fmt: skip
        if not starts:
            return replace(one, why="no controller took over")
        return replace(
            one, found="controller", found_ns=starts[0], why="the next controller adopted what ran"
        )
