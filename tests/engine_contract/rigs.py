"""What the contract needs of an engine to be tested: gangs that behave as they are asked to, controllers that come and go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from unidle.engine.protocol import (
    CheckpointLook,
    Engine,
    LiveAttempt,
    PartOf,
    RankMarks,
    Silent,
    StartGang,
    StopGang,
    Utilised,
)
from unidle.events.marks import Mark
from unidle.fleet import CutMode, CutPart, Device, Fleet, Node, Tier, device_of
from unidle.jobs import JobSpec, RankPlace, Share
from unidle.jobs.vitals import GangVitals
from waiting import wait_until

S = 1_000_000_000
NODES = ("one", "two")
Behaviour = Literal["finish", "fail", "run", "wakes", "stubborn"]
"""``finish``: each rank ends with 0 soon; ``fail``: rank 1 ends with 7, others run on; ``run``: until stopped, at rest;
``wakes``: at rest, until rank 1 is at work from :meth:`EngineRig.wake` on; ``stubborn``: until killed."""
FAILED = 7


def fleet_of(addresses: dict[str, str] | None = None) -> Fleet:
    """Two nodes with four CPU devices each."""
    return Fleet(
        (Tier("site", "site"),),
        tuple(
            Node(node, "site", tuple(Device(f"{node}/{k}", node, k, "cpu") for k in range(4)), address=(addresses or {}).get(node, "127.0.0.1"))
            for node in NODES
        ),
    )  # fmt: skip


@dataclass
class Followed:
    """An attempt and all that was reported of it. Marks must come in order, each once."""

    command: StartGang
    marks: dict[int, list[Mark]] = field(default_factory=dict)
    silent: list[Silent] = field(default_factory=list)
    uses: list[Utilised] = field(default_factory=list)
    vitals: list[GangVitals] = field(default_factory=list)
    looks: list[CheckpointLook] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.marks = {place.rank: [] for place in self.command.places}

    @property
    def key(self) -> tuple[str, int]:
        return self.command.job, self.command.attempt

    def take(self, seen: object) -> None:
        if isinstance(seen, RankMarks) and (seen.job, seen.attempt) == self.key:
            assert seen.first == len(self.marks[seen.rank]), f"{seen} after {self.marks[seen.rank]}"
            assert not self.has_ended(seen.rank), f"{seen} after the end"
            self.marks[seen.rank] += seen.marks
        elif isinstance(seen, Silent) and (seen.job, seen.attempt) == self.key:
            self.silent.append(seen)
        elif isinstance(seen, Utilised) and (seen.job, seen.attempt) == self.key:
            self.uses.append(seen)
        elif isinstance(seen, GangVitals) and (seen.job, seen.attempt) == self.key:
            assert not self.vitals or seen.at_ns > self.vitals[-1].at_ns, f"{seen} after {self.vitals[-1]}"
            self.vitals.append(seen)
        elif isinstance(seen, CheckpointLook) and (seen.job, seen.attempt) == self.key:
            self.looks.append(seen)

    def has_ended(self, rank: int) -> bool:
        return bool(self.marks[rank]) and self.marks[rank][-1].k in ("exit", "lost")

    @property
    def is_over(self) -> bool:
        return all(map(self.has_ended, self.marks))

    @property
    def is_up(self) -> bool:
        return all(any(mark.k == "spawn" for mark in marks) for marks in self.marks.values())

    def codes(self) -> list[int | None]:
        return [marks[-1].code for marks in self.marks.values()]

    def live(self) -> LiveAttempt:
        """The attempt as the next controller reads it in the log."""
        known = tuple(len(marks) for marks in self.marks.values())
        return LiveAttempt(self.command, known, tuple(map(self.has_ended, self.marks)))


class EngineRig(ABC):
    """One engine and what is around it. ``engine`` is the one of the controller that is in office."""

    engine: Engine

    nodes: tuple[str, ...] = NODES

    def __init__(self, place: Path) -> None:
        self.place = place
        self.followed: list[Followed] = []

    # -- what each engine has of its own ---------------------------------------------------------

    @abstractmethod
    def spec(self, behaviour: Behaviour, ranks: int) -> JobSpec:
        """A job that behaves so."""

    @abstractmethod
    def new_engine(self, *, ahead_ns: int = 0) -> Engine:
        """The engine of the next controller, whose clock is so much ahead of the last one's."""

    @abstractmethod
    def begun(self, command: StartGang, rank: int) -> int:
        """How often the rank's program began."""

    @abstractmethod
    def pump(self) -> None:
        """Poll, hand over what came, and wait a moment."""

    def kill(self, command: StartGang, rank: int) -> None:
        """Kill the rank's process, and nothing else."""
        raise NotImplementedError

    def look(self) -> None:  # noqa: B027 - most engines look by themselves
        """Start what looks at ranks, where that is a program of its own."""

    @abstractmethod
    def wake(self) -> None:
        """Have rank 1 of gangs that wake be at work from now on."""

    def freeze(self, command: StartGang, rank: int, *, on: bool) -> None:
        """Stop the rank's process by a signal, or let it go on."""
        raise NotImplementedError

    def runs(self, command: StartGang, rank: int) -> bool:
        """Whether the rank's process is there."""
        raise NotImplementedError

    def is_warm(self) -> bool:
        """Whether all that ranks start from is there, for a job that wants its restarts warm."""
        raise NotImplementedError

    def bounds(self, command: StartGang, rank: int) -> float | None:
        """The CPUs that the rank is bounded to."""
        raise NotImplementedError

    def held(self) -> list[str]:
        """Records of what attempts hold of devices that are cut."""
        raise NotImplementedError

    def stall(self, command: StartGang, rank: int, *, on: bool) -> None:
        """Keep what writes and sends the rank's marks from running, as a disk does that hangs."""
        raise NotImplementedError

    def cut(self, node: str, *, on: bool) -> None:
        """Let nothing pass between a node and the controller."""
        raise NotImplementedError

    def older_controller(self, gang: Followed, act: Callable[[Engine], None]) -> None:
        """Have the engine of the controller before this one act, which believes that it is in office."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """End all that was begun."""

    # -- what they share -------------------------------------------------------------------------

    def command(
        self, behaviour: Behaviour, ranks: int = 2, *, job: str = "job", attempt: int = 1
    ) -> StartGang:
        """A gang whose ranks are on both nodes in turn."""
        nodes = [self.nodes[rank % 2] for rank in range(ranks)]
        places = tuple(RankPlace(rank, node, (f"{node}/{rank // 2}",)) for rank, node in enumerate(nodes))
        return StartGang(job, attempt, self.spec(behaviour, ranks), places)

    def on_parts(self, behaviour: Behaviour, mode: CutMode, share_ppm: int) -> StartGang:
        """A gang of two, each on a part of the first device of its node."""
        command = self.command(behaviour, 2)
        names = [f"{place.slices[0]}#1.0" for place in command.places]
        places = tuple(
            replace(place, slices=(name,)) for place, name in zip(command.places, names, strict=True)
        )
        part = CutPart("1.0", share_ppm, command.job, share_ppm)
        parts = {name: PartOf(device_of(name), mode, part) for name in names}
        return replace(
            command, spec=replace(command.spec, share=Share(share_ppm)), places=places, parts=parts
        )

    def follow(self, command: StartGang) -> Followed:
        self.followed.append(found := Followed(command))
        return found

    def start(self, behaviour: Behaviour, ranks: int = 2, **more: Any) -> Followed:
        gang = self.follow(self.command(behaviour, ranks, **more))
        self.engine.start(gang.command)
        return gang

    def stop(self, gang: Followed, grace_s: float) -> None:
        command = gang.command
        self.engine.stop(StopGang(command.job, command.attempt, len(command.places), int(grace_s * S)))

    def hand_over(self, seen: object) -> None:
        for gang in self.followed:
            gang.take(seen)

    def until(self, holds: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
        def looked() -> object:
            self.pump()
            return holds()

        wait_until(looked, timeout_s, what)

    def up(self, gang: Followed) -> Followed:
        self.until(lambda: gang.is_up, f"spawns of {gang.marks}")
        return gang

    def ends(self, gang: Followed) -> list[int | None]:
        """The exit codes, once every rank has ended."""
        self.until(lambda: gang.is_over, f"the end of {gang.marks}")
        return gang.codes()

    def next_controller(self, *gangs: Followed, ahead_ns: int = 0) -> None:
        """The controller dies; the next one has the log, and what it says of these gangs."""
        self.engine.close()
        self.engine = self.new_engine(ahead_ns=ahead_ns)
        self.take_over(*gangs)

    def take_over(self, *gangs: Followed) -> None:
        self.engine.adopt([gang.live() for gang in gangs])
        self.engine.keep([gang.command.job for gang in gangs])
        for gang in gangs:
            if not gang.is_up:
                self.engine.start(gang.command)
