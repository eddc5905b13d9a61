"""The state of a walk through programs, and the step that all devices which can take at once."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from unidle.span.model.setting import Setting
from unidle.span.simulate.bound import Foresight
from unidle.span.simulate.program import Flags, Ints, Program
from unidle.span.simulate.routes import LANES, Routes, Turns, UnitTimes, waits_over_wan

LOOK: Final = 4  # rounds for each stage after which the walk is judged: a wave goes there and back in two
AHEAD: Final = 4  # rounds between two looks at whether the limit can still be kept
FEW: Final = 12  # steps of a round that are as fast one by one


@dataclass(frozen=True, slots=True)
class Passage:
    """One transfer in turns: begin of each piece of scatter, send and gather, in nanoseconds."""

    turns: Turns
    pipeline: int
    unit: int
    scatter_ns: tuple[int, ...]
    send_ns: tuple[int, ...]
    gather_ns: tuple[int, ...]


@dataclass(slots=True)
class OpTimes:
    """Nanoseconds of each operation, shape ``(stages, 2U)`` flattened.

    ``lead`` may pass while the input is on its way, ``body`` until the result leaves, ``after`` before the next.
    """

    lead: Ints
    body: Ints
    after: Ints


def parts_of(setting: Setting, programs: Sequence[Program], times: UnitTimes) -> OpTimes:
    """The parts of several programs that differ only in their orders, one after the other."""
    found = [_parts(setting, program, times) for program in programs]
    return OpTimes(
        *(np.concatenate([getattr(each, name) for each in found]) for name in ("lead", "body", "after"))
    )


def _parts(setting: Setting, program: Program, times: UnitTimes) -> OpTimes:
    order, units = program.order, program.units
    rows = np.arange(order.shape[0])[:, None]
    backward, index = order >= units, order % units
    chunk = index // setting.microbatches
    again = np.where(backward & program.again[rows, index], times.again[rows, chunk], 0)
    weight = times.weight[rows, chunk]
    body = np.where(backward, times.backward[rows, chunk], times.forward[rows, chunk])
    lead = again if program.early else np.zeros_like(again)
    if not program.early:
        body = body + again
    after = np.zeros_like(body)
    if program.filler is None:
        if program.joined:
            body = body + np.where(backward, weight, 0)
        else:
            after = program.weights_after * weight
    return OpTimes(lead.ravel(), body.ravel(), after.ravel())


@dataclass(slots=True)
class Walk:
    """Programs of one setting that differ only in their orders and fillers, walked together.

    A device is ``(program * pipelines + pipeline) * stages + stage``; its row in the tables ``program * stages + stage``.
    """

    setting: Setting
    programs: tuple[Program, ...]
    routes: Routes
    times: UnitTimes
    trace: bool = False
    end: Foresight | None = None
    pipelines: int = field(init=False)
    width: int = field(init=False)
    order: Ints = field(init=False)
    row: Ints = field(init=False)
    ready: Ints = field(init=False)
    made: Ints = field(init=False)
    at: Ints = field(init=False)
    free: Ints = field(init=False)
    waiting: Ints = field(init=False)
    starts: Ints = field(init=False)
    fills: Ints = field(init=False)
    exposed: Ints = field(init=False)
    lanes: Ints = field(init=False)
    shared: list[Shared] = field(init=False)
    heads: Ints = field(init=False)
    tables: dict[str, Ints | Flags] = field(init=False)
    parts: OpTimes = field(init=False)
    most: Ints = field(init=False)
    slack: Ints = field(init=False)
    ended: set[int] = field(init=False)

    def __post_init__(self) -> None:
        stages, many, first = len(self.setting.stages), len(self.programs), self.programs[0]
        self.pipelines = self.setting.cell if self.routes.turns else 1
        self.width = first.order.shape[1]
        count, size = many * self.pipelines * stages, many * self.pipelines * stages * self.width
        self.ready = np.full(size + 1, -1, dtype=np.int64)  # the last one takes what nobody waits for
        self.made = np.full(size + 2, -1, dtype=np.int64)  # nothing is ever made at the last one
        for begin in range(0, size, stages * self.width):
            self.ready[begin : begin + self.setting.microbatches] = 0
            self.made[begin : begin + self.setting.microbatches] = 0
        self.at, self.free, self.waiting, self.exposed = (np.zeros(count, dtype=np.int64) for _ in range(4))
        self.starts = np.zeros(size, dtype=np.int64)
        self.fills = np.zeros(size if first.filler else 0, dtype=np.int64)
        self.lanes = np.zeros(count * LANES, dtype=np.int64)
        self.order = np.concatenate([program.order for program in self.programs])
        device = np.arange(count)
        self.row = device // (self.pipelines * stages) * stages + device % stages
        self.parts = parts_of(self.setting, self.programs, self.times)
        fillers = [program.filler for program in self.programs if program.filler is not None]
        none = np.zeros(0, dtype=np.int64)
        self.most = np.concatenate([filler.most for filler in fillers]) if fillers else none
        self.slack = np.concatenate([filler.slack_ns for filler in fillers]) if fillers else none
        self.ended = set()
        self.shared = [
            Shared(self, link, which, self._sent(link, program))
            for which, program in enumerate(self.programs)
            for link in self.routes.turns
        ]
        self._lookups(stages)

    def _sent(self, link: Turns, program: Program) -> list[int]:
        order = program.order[link.stage]
        found: list[int] = (order % program.units)[(order < program.units) == link.forward].tolist()
        return found

    def _lookups(self, stages: int) -> None:
        """Tables by ``stage * 2 chunks + kind of operation``, and what is waited for over a WAN."""
        routes = self.routes
        here = np.arange(stages)[:, None]
        jump = (routes.to - here) * self.width + routes.code
        waited = waits_over_wan(routes, self.setting.microbatches)
        self.tables = {
            "jump": jump.ravel(), "none": (routes.to < 0).ravel(), "lane": routes.lane.ravel(),
            "wire": routes.wire_ns.ravel(), "way": (routes.wire_ns + routes.latency_ns).ravel(),
            "own": (routes.shared < 0).ravel(), "waited": waited.ravel(),
        }  # fmt: skip

    def all_rounds(self) -> bool:
        """Walk in rounds; False where so few devices move at once that one by one is faster."""
        order, stages = self.order.ravel(), len(self.setting.stages)
        live = np.arange(len(self.at))
        rows, base = self.row * self.width, live * self.width
        kinds = live % stages * 2 * self.programs[0].chunks
        self.heads = np.array([link.head for link in self.shared], dtype=np.int64)
        rounds, steps, look = 0, 0, LOOK * stages
        while live.size:
            if self.end is not None and not rounds % AHEAD and self.give_up():
                live = live[~np.isin(live // (self.pipelines * stages), list(self.ended))]
                continue
            spot = rows[live] + self.at[live]
            code = order[spot]
            need = self.ready[base[live] + code]
            able = need >= 0
            moved = bool(able.any())
            if moved:
                who = live[able]
                kind = kinds[who] + code[able] // self.setting.microbatches
                self._step(who, spot[able], base[who] + code[able], need[able], kind)
                live = live[self.at[live] < self.width]
                steps += len(who)
            for k in np.nonzero(self.made[self.heads] >= 0)[0].tolist():
                moved = bool(self.shared[k].advance()) or moved
                self.heads[k] = self.shared[k].head
            if not moved:
                break
            rounds += 1
            if not rounds % look:
                if steps < FEW * look:
                    return False
                steps = 0
        return True

    def give_up(self, at: Ints | None = None, free: Ints | None = None, waiting: Ints | None = None) -> bool:
        """Programs that cannot keep the limit end; whether there were any. The walk's tables by default."""
        if self.end is None:
            return False
        at, free = self.at if at is None else at, self.free if free is None else free
        waiting = self.waiting if waiting is None else waiting
        late = self.end.too_long(self.row, at, free, waiting).reshape(len(self.programs), -1).any(axis=1)
        found = set(np.nonzero(late)[0].tolist()) - self.ended
        self.ended |= found
        self.shared = [link for link in self.shared if link.program not in self.ended]
        self.heads = np.array([link.head for link in self.shared], dtype=np.int64)
        return bool(found)

    def _step(self, who: Ints, spot: Ints, what: Ints, need: Ints, kind: Ints) -> None:
        parts, tables = self.parts, self.tables
        free, lead = self.free[who], parts.lead[spot]
        position = who * self.width + self.at[who]
        filled = bool(len(self.fills))
        if filled:
            free = self._fill(who, need - free - lead, position, free)
        prepared = free + lead
        start = np.maximum(need, prepared)
        self.starts[position] = start
        self.exposed[who] += np.where(
            tables["waited"][kind], np.maximum(start - np.maximum(prepared, self.made[what]), 0), 0
        )
        leaves = start + parts.body[spot]
        self.free[who] = leaves + parts.after[spot]
        if filled:
            self._put_off(who, kind)
        self.at[who] += 1
        target = np.where(tables["none"][kind], len(self.ready) - 1, what + tables["jump"][kind])
        self.made[target] = leaves
        own = tables["own"][kind]
        lane = who * LANES + tables["lane"][kind]
        begin = np.maximum(leaves, self.lanes[lane])
        self.lanes[lane[own]] = (begin + tables["wire"][kind])[own]
        self.ready[target[own]] = (begin + tables["way"][kind])[own]

    def _fill(self, who: Ints, gap: Ints, position: Ints, free: Ints) -> Ints:
        """Gradients of weights into the wait."""
        each = self.times.weight[who % len(self.setting.stages), 0]
        fits = np.where(gap > 0, (gap + self.slack[self.row[who]]) // np.maximum(each, 1), 0)
        count = np.minimum(self.waiting[who], fits)
        self.fills[position] += count
        self.waiting[who] -= count
        filled: Ints = free + count * each
        return filled

    def _put_off(self, who: Ints, kind: Ints) -> None:
        """After a backward one more waits; where that is too many, one runs now."""
        self.waiting[who] += kind % 2  # a filler has one chunk: kinds are forward, backward
        late = (self.waiting[who] > self.most[self.row[who]]).astype(np.int64)
        self.waiting[who] -= late
        self.free[who] += late * self.times.weight[who % len(self.setting.stages), 0]
        following = who * self.width + np.minimum(self.at[who] + 1, self.width - 1)
        inside = self.at[who] + 1 < self.width
        self.fills[following[inside]] += late[inside]


class Shared:
    """A link in turns while the rounds go: microbatch by microbatch, pipeline after pipeline."""

    __slots__ = (
        "_at",
        "_entry",
        "_free",
        "_link",
        "_out",
        "_pieces",
        "_turn",
        "_units",
        "_walk",
        "passages",
        "program",
    )

    def __init__(self, walk: Walk, link: Turns, program: int, units: list[int]) -> None:
        self._walk, self._link, self._units = walk, link, units
        self.program = program
        self._turn, self._free = 0, 0
        self._out, self._entry = [0] * walk.pipelines, [0] * walk.pipelines
        stages = len(walk.setting.stages)
        backward = 0 if link.forward else walk.programs[program].units
        first = program * walk.pipelines
        self._at = [((first + c) * stages + link.to) * walk.width + backward for c in range(walk.pipelines)]
        self._pieces = tuple(zip(link.scatter_ns, link.send_ns, link.gather_ns, strict=True))
        self.passages: list[Passage] = []

    @property
    def head(self) -> int:
        """Where what passes next is waited for; where nothing is ever made when all has passed."""
        nth, pipeline = divmod(self._turn, self._walk.pipelines)
        return self._at[pipeline] + self._units[nth] if nth < len(self._units) else len(self._walk.made) - 1

    def advance(
        self,
        made: MutableSequence[int] | Ints | None = None,
        ready: MutableSequence[int] | Ints | None = None,
    ) -> list[int]:
        """All transfers whose turn has come and that are there; the receiving devices. The walk's tables by default."""
        walk, moved = self._walk, list[int]()
        made = walk.made if made is None else made
        ready = walk.ready if ready is None else ready
        while self._turn < len(self._units) * walk.pipelines:
            nth, pipeline = divmod(self._turn, walk.pipelines)
            target = self._at[pipeline] + self._units[nth]
            leaves = int(made[target])
            if leaves < 0:
                break
            ready[target] = self._pass(leaves, pipeline, self._units[nth])
            self._turn += 1
            moved.append(target // walk.width)
        return moved

    def _pass(self, made: int, c: int, unit: int) -> int:
        """When the transfer is whole at the far stage."""
        if self._walk.trace:
            return self._pass_traced(made, c, unit)
        out, free, entry, late = self._out[c], self._free, self._entry[c], self._link.latency_ns
        if out < made:
            out = made
        for scatter, send, gather in self._pieces:
            out += scatter
            free = (max(out, free)) + send
            there = free + late
            entry = (max(there, entry)) + gather
        self._out[c], self._free, self._entry[c] = out, free, entry
        return entry

    def _pass_traced(self, made: int, c: int, unit: int) -> int:
        """The same, and when each piece began."""
        begins = []
        for scatter, send, gather in self._pieces:
            spread = max(made, self._out[c])
            self._out[c] = spread + scatter
            sent = max(spread + scatter, self._free)
            self._free = sent + send
            collected = max(self._free + self._link.latency_ns, self._entry[c])
            self._entry[c] = collected + gather
            begins.append((spread, sent, collected))
        columns = tuple(zip(*begins, strict=True))
        self.passages.append(Passage(self._link, c, unit, columns[0], columns[1], columns[2]))
        return self._entry[c]
