"""All that an agent sees of the ranks on its host: what they do, whether they use their devices, where they stand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from unidle import wire
from unidle.agent.held_ranks import HeldRanks
from unidle.clock import boottime_ns
from unidle.engine.local.ranks import rundir
from unidle.fleet import Node
from unidle.hub import frames

if TYPE_CHECKING:
    from unidle.agent.continuous import ContinuousProfiles
    from unidle.agent.mounts import Mounts
    from unidle.agent.profiles import Profiles
    from unidle.agent.uses import Uses
    from unidle.agent.vitals import Vitals
    from unidle.scope.stack_process import StackProcess, StackProcesses

ORDERS: Final = frozenset({wire.USE, wire.STACKS, wire.PROFILE, wire.PROFILING, wire.MOUNTS})
"""The orders of a hub that are for this part of the agent."""
EVERY_S: Final = 0.4
"""Between two searches for ranks, and two reports of what they do."""
PROFILES: Final = "profiles"
"""Next to the directory of boxes: files of profiles, until they were sent."""
MOUNTS: Final = "mounts"
"""Next to it, too: locks of the processes that ask mounts."""
_STACKS_WITHIN_S: Final = 5.0
_STACKS_BYTES: Final = 256 * 1024
_MOST_RANKS: Final = 4096


class StackOrder(msgspec.Struct, frozen=True):
    """Ranks of an attempt whose stacks are to be read; without any, only be ready to."""

    job: str = ""
    attempt: int = 0
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Reading:
    process: StackProcess
    until_s: float


Answer = tuple[int, str, dict[str, Any]]
"""To a command: why it cannot be carried out, empty where it was; and its data."""


class RankLooks:
    """Ranks of the boxes below ``root``, each with the run root ``runs`` in its directory."""

    def __init__(self, node: Node, root: Path, runs: str) -> None:
        self._node, self._root, self._runs = node, root, runs
        self._ranks = HeldRanks(root, runs)
        self._vitals: Vitals | None = None  # made with the first rank
        self._uses: Uses | None = None  # and these with the first order
        self._stacks: StackProcesses | None = None
        self._readings: dict[int, _Reading] = {}
        self._profiles: Profiles | None = None
        self._continuous: ContinuousProfiles | None = None
        self._mounts: Mounts | None = None
        self._due_s = 0.0

    # -- orders ----------------------------------------------------------------------------------

    def take(self, command: int, what: str, body: dict[str, Any]) -> Answer | None:
        """Carry out one of :data:`ORDERS`; None where the answer comes later."""
        try:
            if what == wire.USE:
                self._measure(body)
            elif what == wire.PROFILE:
                return self._profile(command, body)
            elif what == wire.PROFILING:
                self._profile_on(body)
            elif what == wire.MOUNTS:
                self._ask_mounts(body)
            elif not self._read(command, msgspec.convert(body, StackOrder)):
                return None
        except msgspec.ValidationError as error:
            return command, f"the order is not as agreed: {error}", {}
        except (OSError, ValueError) as error:
            return command, str(error), {}
        return command, "", {}

    def _measure(self, body: dict[str, Any]) -> None:
        """Measure whether the devices of a gang are used, or cease to."""
        if self._uses is None:
            from unidle.agent.uses import Uses

            self._uses = Uses(self._node, lambda: self._ranks.live)
        self._uses.watch(body)

    def _read(self, command: int, order: StackOrder) -> bool:
        """Begin to read stacks, of ranks that boxes here hold alone; whether that is all. Errors: ValueError, OSError."""
        if self._stacks is None:
            from unidle.scope.stack_process import StackProcesses

            self._stacks = StackProcesses()
        if not order.ranks:
            self._stacks.prepare(boottime_ns())
            return True
        if command in self._readings:
            return False
        if len(order.ranks) > _MOST_RANKS:
            raise ValueError(f"at most {_MOST_RANKS} ranks are read at once")
        root = self._root / rundir.path_part(order.job) / self._runs
        orders = {
            "root": str(root), "job": order.job, "attempt": order.attempt, "ranks": 0, "only": list(order.ranks),
        }  # fmt: skip
        self._readings[command] = _Reading(self._stacks.begin(orders), time.monotonic() + _STACKS_WITHIN_S)
        return False

    def _profile(self, command: int, body: dict[str, Any]) -> Answer | None:
        """A profile is begun, or a part of one is sent. Errors: ValueError, OSError, msgspec.ValidationError."""
        from unidle.agent.profiles import ProfileOrder, Profiles

        if self._profiles is None:
            self._profiles = Profiles(self._root.parent / PROFILES)
        order = msgspec.convert(body, ProfileOrder)
        if order.end:
            self._profiles.end(order.name)
            return command, "", {}
        if not order.job:
            return command, "", self._profiles.part(order.name, order.offset)
        self._profiles.begin(command, order, self._root / rundir.path_part(order.job) / self._runs)
        return None

    def _profile_on(self, body: dict[str, Any]) -> None:
        """Profile all ranks again and again from now on. Errors: msgspec.ValidationError."""
        if self._continuous is None:
            from unidle.agent.continuous import ContinuousProfiles

            self._continuous = ContinuousProfiles(self._root, self._runs)
        self._continuous.order(body)

    def _ask_mounts(self, body: dict[str, Any]) -> None:
        """Ask the mounts of these directories again and again from now on. Errors: msgspec.ValidationError."""
        if self._mounts is None:
            from unidle.agent.mounts import Mounts

            self._mounts = Mounts(self._root.parent / MOUNTS)
        self._mounts.order(body)

    def answers(self) -> Iterator[Answer]:
        """To orders that have come to an end."""
        if self._profiles is not None:
            yield from self._profiles.ended()
        if not self._readings:
            return
        from unidle.scope.stack_process import within

        for command, reading in list(self._readings.items()):
            if reading.process.ended() or time.monotonic() >= reading.until_s:
                del self._readings[command]
                reading.process.end()
                stacks = within(reading.process.stacks, _STACKS_BYTES)
                why = "" if stacks else "the snapshot ended without a result"
                yield command, why, {"stacks": msgspec.to_builtins(stacks)}

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being waited for."""
        return bool(self._readings) or (self._profiles is not None and self._profiles.is_busy)

    # -- reports ---------------------------------------------------------------------------------

    def reports(self, jobs: list[str], *, connected: bool) -> Iterator[frames.Seen]:
        """What is to be sent now of the ranks of the boxes of these jobs."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        if self._stacks is not None:
            self._stacks.tidy(boottime_ns())
        if self._profiles is not None:
            self._profiles.tidy()
        self._ranks.look(jobs)
        if self._vitals is None and self._ranks.live:
            from unidle.agent.vitals import Vitals

            self._vitals = Vitals()
        if self._vitals is not None:
            self._vitals.follow(self._ranks.live)
            yield from (frames.Seen(wire.VITALS, body) for body in self._vitals.take(connected=connected))
        if self._uses is not None and connected:
            yield from (frames.Seen(wire.USE, body) for body in self._uses.take())
        if self._continuous is not None and connected:
            self._continuous.follow(self._ranks.live)
            yield from (frames.Seen(wire.PROFILING, body) for body in self._continuous.take())
        if self._mounts is not None:
            states = self._mounts.take(boottime_ns(), connected=connected)
            yield from (frames.Seen(wire.MOUNTS, body) for body in states)

    def lost(self) -> None:
        """The connection broke, and with it the wait for answers to its orders."""
        if self._uses is not None:
            self._uses.lost()
        if self._profiles is not None:
            self._profiles.lost()
        for part in (self._continuous, self._mounts):
            if part is not None:
                part.lost()
        for reading in self._readings.values():
            reading.process.end()
        self._readings.clear()

    def close(self) -> None:
        """End all that looks."""
        self.lost()
        for part in (self._vitals, self._uses, self._stacks, self._profiles, self._continuous, self._mounts):
            if part is not None:
                part.close()
