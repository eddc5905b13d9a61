"""What the tests of the local engine share: real gangs on a fleet of CPU devices, and what they left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unidle.clock import RealClock
from unidle.engine.local.engine import LocalEngine
from unidle.engine.local.ranks import process_tree, rundir
from unidle.engine.local.ranks.cgroups import ControlGroup
from unidle.engine.protocol import CheckpointLook, LiveAttempt, RankMarks, StartGang, StopGang, Utilised
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, RankPlace
from unidle.jobs.vitals import GangVitals
from waiting import wait_until

FLEET = Fleet(
    nodes=tuple(
        Node(node, "site", tuple(Device(f"{node}/{k}", node, k, "cpu") for k in range(4)))
        for node in ("left", "right")
    )
)


def python(code: str) -> tuple[str, ...]:
    """A command that runs ``code`` in a Python that starts fast."""
    return (sys.executable, "-I", "-S", "-c", code)


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


def gang_of(
    command: tuple[str, ...], ranks: int = 1, *, job: str = "job", attempt: int = 1, **spec: Any
) -> StartGang:
    """A command to start ``ranks`` ranks, every other one on the second node."""
    devices = [
        device for pair in zip(FLEET.nodes[0].devices, FLEET.nodes[1].devices, strict=True) for device in pair
    ]
    places = tuple(RankPlace(rank, devices[rank].node, (devices[rank].id,)) for rank in range(ranks))
    return StartGang(job, attempt, JobSpec(command=command, ranks=ranks, **spec), places)


@dataclass
class Gang:
    """One attempt that a test follows."""

    engine: LocalEngine
    command: StartGang
    directory: Path
    marks: dict[int, list[Mark]] = field(default_factory=dict)
    told: list[Utilised] = field(default_factory=list)  # what was measured, of any gang of the engine
    vitals: list[GangVitals] = field(default_factory=list)  # looks at gangs of the engine
    looks: list[CheckpointLook] = field(default_factory=list)  # checkpoints that were found bad
    beside: list[Gang] = field(default_factory=list)  # gangs that the same engine may have news of

    def rank(self, rank: int) -> Path:
        """The rank's directory."""
        return self.directory / f"rank{rank}"

    def log(self, rank: int = 0) -> str:
        path = self.rank(rank) / rundir.LOG
        return path.read_text() if path.exists() else ""

    def pump(self) -> None:
        """Poll once; marks must come in order, each once."""
        for seen in self.engine.poll():
            if isinstance(seen, Utilised):
                self.told.append(seen)
                continue
            if isinstance(seen, GangVitals):
                self.vitals.append(seen)
                continue
            if isinstance(seen, CheckpointLook):
                self.looks.append(seen)
                continue
            for gang in self.beside:
                command = gang.command
                if gang.engine is self.engine and (command.job, command.attempt) == (seen.job, seen.attempt):
                    gang.take(seen)

    def take(self, seen: RankMarks) -> None:
        known = self.marks.setdefault(seen.rank, [])
        assert seen.first == len(known)
        known.extend(seen.marks)

    def until(self, condition: Callable[[], Any], timeout_s: float = 60.0, what: str = "") -> Any:
        def holds() -> Any:
            self.pump()
            return condition()

        return wait_until(holds, timeout_s, what)

    def kinds(self, rank: int = 0) -> list[str]:
        return [mark.k for mark in self.marks.get(rank, [])]

    def last(self, kind: str, rank: int = 0) -> Mark:
        return next(mark for mark in reversed(self.marks[rank]) if mark.k == kind)

    def notes(self, rank: int = 0) -> str:
        return "\n".join(mark.text or "" for mark in self.marks.get(rank, []) if mark.k == "note")

    def is_over(self) -> bool:
        return all(map(self.is_over_of, range(len(self.command.places))))

    def is_over_of(self, rank: int) -> bool:
        return self.kinds(rank)[-1:] in (["exit"], ["lost"])

    def spawned(self) -> None:
        """Wait until every rank's process exists."""
        self.until(
            lambda: all("spawn" in self.kinds(r) for r in range(len(self.command.places))), what="spawns"
        )

    def printed(self, text: str, rank: int = 0) -> None:
        """Wait until the rank has printed ``text``."""
        self.until(lambda: text in self.log(rank), what=f"{text!r}")

    def ends(self, timeout_s: float = 60.0) -> list[Mark]:
        """Wait for the end of all ranks; their last marks."""
        self.until(self.is_over, timeout_s, f"the end of {self.command.job}: {self.marks}")
        return [self.marks[rank][-1] for rank in range(len(self.command.places))]

    def codes(self, timeout_s: float = 60.0) -> list[int | None]:
        return [mark.code for mark in self.ends(timeout_s)]

    def stop(self, grace_s: float = 10.0) -> None:
        command = self.command
        self.engine.stop(StopGang(command.job, command.attempt, len(command.places), int(grace_s * 1e9)))

    def processes(self, rank: int) -> set[int]:
        """Live processes that have the rank's environment."""
        run_id = f"{self.engine._name}-{self.command.job}-{self.command.attempt}"
        return process_tree.with_environment(f"UNIDLE_RUN_ID={run_id}", f"UNIDLE_RANK={rank}")


class Machine:
    """Starts engines and gangs in one run root, and checks in the end that nothing of them is left."""

    def __init__(self, run_root: Path, *, grouped: bool) -> None:
        self.run_root = run_root
        self.grouped = grouped
        self.gangs: list[Gang] = []
        self.engines: list[LocalEngine] = []
        self.engine = self.new_engine()

    def new_engine(self, fleet: Fleet = FLEET) -> LocalEngine:
        """Another engine on the same run root, as the next controller has it."""
        engine = LocalEngine(self.run_root, fleet, RealClock())
        if not self.grouped:
            engine.__dict__["_groups"] = {}
        self.engines.append(engine)
        return engine

    def start(self, command: tuple[str, ...], ranks: int = 1, **spec: Any) -> Gang:
        return self.begin(gang_of(command, ranks, **spec))

    def begin(self, command: StartGang) -> Gang:
        gang = self.follow(command)
        gang.engine.start(gang.command)
        return gang

    def follow(self, command: StartGang, engine: LocalEngine | None = None) -> Gang:
        directory = self.run_root / command.job / str(command.attempt)
        gang = Gang(engine or self.engine, command, directory, beside=self.gangs)
        self.gangs.append(gang)
        return gang

    def adopt(self, command: StartGang, known: dict[int, list[Mark]] | None = None) -> Gang:
        """What the next controller does: a new engine that adopts, and is told to start again."""
        gang = self.follow(command, self.new_engine())
        gang.marks = {rank: list(marks) for rank, marks in (known or {}).items()}
        counts = tuple(len(gang.marks.get(rank, ())) for rank in range(len(command.places)))
        ended = tuple(bool(gang.is_over_of(rank)) for rank in range(len(command.places)))
        gang.engine.adopt([LiveAttempt(command, counts, ended)])
        gang.engine.start(command)
        return gang

    def close(self) -> None:
        for gang in self.gangs:
            gang.stop(0)
        for gang in self.gangs:
            gang.engine.poll()
        for engine in self.engines:
            wait_until(lambda e=engine: not e.poll() and _settled(e), 60, "the end of all ranks")  # type: ignore[misc]
            engine.close()
        wait_until(lambda: not self.leftovers(), 60, "nothing to be left")

    def leftovers(self) -> list[str]:
        found = [f"process {pid}" for gang in self.gangs for r in gang.marks for pid in gang.processes(r)]
        for parent in self.engine._groups.values():
            found += [str(path) for path in Path(parent).glob(f"{self.engine._name}/*")]
        return found


def _settled(engine: LocalEngine) -> bool:
    watches = [watch for gang in engine._gangs.values() for watch in gang.watches]
    return all(watch.state == "ended" for watch in watches)


def group_of(gang: Gang, rank: int = 0) -> ControlGroup:
    """The rank's control group."""
    return gang.engine._gangs[gang.command.job, gang.command.attempt].watches[rank].group
