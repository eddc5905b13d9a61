"""The faults by name, and how they are run: the same rig for all tries of one, and the four counts at its end."""

from __future__ import annotations

import functools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from host_faults import hub_faults, line_kills, network_faults, process_faults
from host_faults.counts import Counts, counted
from host_faults.rig import Rig, rig_of

Act = Callable[[Rig, random.Random, int], str]
LineAct = Callable[[Rig, line_kills.Launched, int, int], str]
LinesAct = Callable[[Rig, line_kills.Launched, int, Iterable[int]], tuple[str, list[int]]]
IN_ONE_GANG: Final = 25  # lines


@dataclass(frozen=True, slots=True)
class Fault:
    """``tries``: by default. ``torn``: it damages journals, so that these are no measure of what the log has to have."""

    name: str
    act: Act
    tries: int
    opened: Callable[[Path], AbstractContextManager[Rig]] = rig_of
    torn: bool = False


@dataclass(frozen=True, slots=True)
class LineKills:
    """``node``: where what is killed runs. ``fresh``: each try has a rig of its own, that nothing runs in yet.

    ``many`` tries several lines in one gang, and returns how that ended and the lines that were not reached. The deadline
    has to bear all starts that are killed before the host and the controller have heard of each other.
    """

    name: str
    act: LineAct
    tries: int
    node: str = "n2"
    fresh: bool = False
    many: LinesAct | None = None
    deadline_s: int = 30


@dataclass(slots=True)
class Ended:
    """What came of the tries of one fault. ``wrong``: tries that did not come to their end."""

    name: str
    runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    counts: Counts = field(default_factory=Counts)
    wrong: list[str] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0
    until_s: float = math.inf  # of the monotonic clock: no line is tried later

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.until_s

    @property
    def holds(self) -> bool:
        return not self.wrong and not any(self.counts.numbers)


part = functools.partial
FAULTS: Final[tuple[Fault | LineKills, ...]] = (
    Fault("cable pulled for 1 s", part(network_faults.cable, seconds=1), 10),
    Fault("cable pulled for 5 s", part(network_faults.cable, seconds=5), 10),
    Fault("cable pulled for 60 s", part(network_faults.cable, seconds=60), 4),
    Fault("30 % of frames lost", part(network_faults.bad_wire, loss=0.3, delay_ms=0), 4),
    Fault("500 ms of delay", part(network_faults.bad_wire, loss=0.0, delay_ms=500), 4),
    Fault("half-open: one direction lost", network_faults.half_open, 8),
    Fault("half-open: host gone without a word", network_faults.host_gone, 6),
    Fault("address of a host changes", network_faults.host_moves, 3),
    Fault("controller moves to another address", network_faults.controller_moves, 3),
    Fault("box killed and host cut within the grace of a stop", network_faults.stubborn, 3),
    Fault("box, agent or controller killed", process_faults.killed, 12),
    LineKills("box killed at a line of its start", line_kills.box_start, 60),
    LineKills("box killed at a line of its restart", line_kills.box_restart, 60, many=line_kills.box_restarts, deadline_s=900),
    LineKills("agent killed at a line of its start", line_kills.agent_start, 40),
    LineKills("agent killed at a line of its restart", line_kills.agent_restart, 60, many=line_kills.agent_restarts),
    LineKills("controller killed at a line of its first start", line_kills.controller_start, 30, "hub", fresh=True),
    LineKills("controller killed at a line of its restart", line_kills.controller_restart, 60, "hub", many=line_kills.controller_restarts, deadline_s=900),
    Fault("disk of a host full", process_faults.full_disk, 8, process_faults.rig_with_small_disks),
    Fault("journal torn at any byte", process_faults.torn_journal, 10, torn=True),
    Fault("clocks wrong and stepping", process_faults.wrong_clocks, 3, process_faults.rig_with_wrong_clocks),
    Fault("two controllers on one store", process_faults.second_controller, 3, process_faults.rig_with_switch),
    Fault("port taken", process_faults.port_taken, 3),
    Fault("frames repeated, reordered, cut, random", hub_faults.bad_frames, 4, hub_faults.rig_behind_proxy),
    Fault("strangers: token, version, bytes", hub_faults.strangers, 4),
    Fault("1,000 connections that send nothing", hub_faults.silent_connections, 3),
)  # fmt: skip


def run_fault(
    fault: Fault | LineKills, place: Path, tries: int, dice: random.Random, within_s: float = math.inf
) -> Ended:
    """Try a fault so often; ``place`` is a directory that is not there yet. After ``within_s`` no further line is tried."""
    ended = Ended(fault.name, until_s=time.monotonic() + within_s)
    began_s = time.monotonic()
    if isinstance(fault, Fault):
        _tried(fault, place, tries, dice, ended)
    else:
        _lines_tried(fault, place, tries, dice, ended)
    ended.seconds = time.monotonic() - began_s
    return ended


def _tried(fault: Fault, place: Path, tries: int, dice: random.Random, ended: Ended) -> None:
    with fault.opened(place) as rig:
        for number in range(tries):
            if not _noted(ended, functools.partial(fault.act, rig, dice, number)):
                break
        _counted(rig, ended, torn=fault.torn)


def _lines_tried(fault: LineKills, place: Path, tries: int, dice: random.Random, ended: Ended) -> None:
    """First a try without a kill, which shows the lines, then some of them."""
    if not fault.fresh:
        with line_kills.pair_of(place, fault.node, fault.deadline_s) as (rig, launched):
            lines = _line_tried(fault, rig, launched, 0, 0, ended)
            chosen = line_kills.chosen(lines, tries, dice)
            alone = _many_tried(fault, rig, launched, chosen, dice, ended)
            for number, line in enumerate(alone, 1):
                if ended.is_late or _line_tried(fault, rig, launched, number, line, ended) < 0:
                    break
            _counted(rig, ended)
    else:
        lines, chosen = 0, [0]
        for number, line in _and_then(chosen):
            with line_kills.bare_of(place / str(number)) as rig:
                found = _line_tried(fault, rig, line_kills.Launched(rig, fault.node), number, line, ended)
                _counted(rig, ended)
            if found < 0 or ended.is_late:
                break
            if not number:
                lines = found
                chosen += line_kills.chosen(lines, tries, dice)
    ended.note = f"{ended.runs} of {lines} lines"


def _many_tried(
    fault: LineKills, rig: Rig, launched: line_kills.Launched, lines: list[int], dice: random.Random, ended: Ended,
) -> list[int]:  # fmt: skip
    """Try lines many in one gang, where that is possible; those that are left to be tried one by one.

    The gangs are in an order of the dice, so that those which fit into the time are of all parts of the start.
    """
    if fault.many is None:
        return lines
    left: list[int] = []
    groups = [lines[at : at + IN_ONE_GANG] for at in range(0, len(lines), IN_ONE_GANG)]
    for number, some in enumerate(dice.sample(groups, len(groups)), 1):
        if ended.is_late:
            break
        tried: list[int] = []
        try:
            outcome, missed = fault.many(rig, launched, number, _in_time(some, ended, tried))
        except Exception as error:  # the tries before it are still counted
            ended.wrong.append(f"lines {some[0]} to {some[-1]}: {type(error).__name__}: {error}")
            return []
        ended.runs += len(tried) - len(missed)
        ended.outcomes[outcome] += len(tried) - len(missed)
        left += missed
    return left


def _in_time(lines: list[int], ended: Ended, tried: list[int]) -> Iterator[int]:
    """Lines to try, each noted in ``tried``, until no more are to be tried."""
    for line in lines:
        if ended.is_late:
            return
        tried.append(line)
        yield line


def _and_then(growing: list[int]) -> Iterator[tuple[int, int]]:
    yield from enumerate(growing)


def _line_tried(
    fault: LineKills, rig: Rig, launched: line_kills.Launched, number: int, line: int, ended: Ended
) -> int:
    """How many lines ran; below 0 where the try did not come to its end."""
    if not _noted(ended, lambda: fault.act(rig, launched, number, line), f" at line {line}", counts=line > 0):
        return -1
    if line and not launched.was_killed:
        ended.outcomes["line not reached"] += 1
    return len(launched.lines)


def _noted(ended: Ended, act: Callable[[], str], what: str = "", *, counts: bool = True) -> bool:
    """Run a try; whether it came to its end. ``counts``: it has a fault."""
    ended.runs += counts
    try:
        outcome = act()
    except Exception as error:  # the tries before it are still counted
        ended.wrong.append(f"try {ended.runs}{what}: {type(error).__name__}: {error}")
        return False
    ended.outcomes[outcome] += counts
    return True


def _counted(rig: Rig, ended: Ended, *, torn: bool = False) -> None:
    if ended.wrong:  # nothing has ended
        return
    found = counted(rig, torn=torn)
    found.left = rig.left()
    ended.counts.add(found)
