"""The state of a walk through a program, and the step that all devices which can take at once."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from unidle.span.program import Flags, Ints, Program, Stuck
from unidle.span.routes import LANES, Routes, Times, Turns
from unidle.span.setting import Setting

LOOK: Final = 4  # rounds for each stage after which the walk is judged: a wave goes there and back in two
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
class Parts:
    """Nanoseconds of each operation, shape ``(stages, 2U)`` flattened.

    ``lead`` may pass while the input is on its way, ``body`` until the result leaves, ``after`` before the next.
    """

    lead: Ints
    body: Ints
    after: Ints


def _parts(setting: Setting, program: Program, times: Times) -> Parts:
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
    return Parts(lead.ravel(), body.ravel(), after.ravel())


@dataclass(slots=True)
class Walk:
    setting: Setting
    program: Program
    routes: Routes
    times: Times
    trace: bool
    pipelines: int = field(init=False)
    width: int = field(init=False)
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
    tables: dict[str, Ints | Flags] = field(init=False)
    parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        stages, program = len(self.setting.stages), self.program
        self.pipelines = self.setting.cell if self.routes.turns else 1
        self.width = program.order.shape[1]
        count, size = self.pipelines * stages, self.pipelines * stages * self.width
        self.ready = np.full(size + 1, -1, dtype=np.int64)  # the last one takes what nobody waits for
        self.made = np.full(size + 1, -1, dtype=np.int64)
        for first in range(0, count, stages):
            begin = first * self.width
            self.ready[begin : begin + self.setting.microbatches] = 0
            self.made[begin : begin + self.setting.microbatches] = 0
        self.at, self.free, self.waiting, self.exposed = (np.zeros(count, dtype=np.int64) for _ in range(4))
        self.starts = np.zeros(size, dtype=np.int64)
        self.fills = np.zeros(size if program.filler else 0, dtype=np.int64)
        self.lanes = np.zeros(count * LANES, dtype=np.int64)
        self.parts = _parts(self.setting, program, self.times)
        self.shared = [
            Shared(self, link, (program.order[link.stage] % program.units)[self._sends(link)].tolist())
            for link in self.routes.turns
        ]
        self._lookups(stages)

    def _sends(self, link: Turns) -> Flags:
        found: Flags = (self.program.order[link.stage] < self.program.units) == link.forward
        return found

    def _lookups(self, stages: int) -> None:
        """Tables by ``stage * 2 chunks + kind of operation``, and what is waited for over a WAN."""
        routes, size = self.routes, 2 * self.program.chunks
        here = np.arange(stages)[:, None]
        jump = (routes.to - here) * self.width + routes.code
        waited = np.zeros((stages, size), dtype=np.bool_)
        for s, group in np.argwhere(routes.wan):
            gone = int(routes.code[s, group]) // self.setting.microbatches
            waited[routes.to[s, group], group + gone] = True
        self.tables = {
            "jump": jump.ravel(), "none": (routes.to < 0).ravel(), "lane": routes.lane.ravel(),
            "wire": routes.wire_ns.ravel(), "way": (routes.wire_ns + routes.latency_ns).ravel(),
            "own": (routes.shared < 0).ravel(), "waited": waited.ravel(),
        }  # fmt: skip

    def all_rounds(self) -> bool:
        """Walk in rounds; False where so few devices move at once that one by one is faster."""
        order = self.program.order.ravel()
        live = np.arange(len(self.at))
        stage = live % len(self.setting.stages)
        rows, base = stage * self.width, live * self.width
        kinds = stage * 2 * self.program.chunks
        rounds, steps, look = 0, 0, LOOK * len(self.setting.stages)
        while live.size:
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
            for link in self.shared:
                moved = bool(link.advance()) or moved
            if not moved:
                raise Stuck
            rounds += 1
            if rounds % look == 0:
                if steps < FEW * look:
                    return False
                steps = 0
        return True

    def _step(self, who: Ints, spot: Ints, what: Ints, need: Ints, kind: Ints) -> None:
        parts, tables = self.parts, self.tables
        free, lead = self.free[who], parts.lead[spot]
        position = who * self.width + self.at[who]
        filler = self.program.filler
        if filler is not None:
            free = self._fill(who, need - free - lead, position, free)
        prepared = free + lead
        start = np.maximum(need, prepared)
        self.starts[position] = start
        self.exposed[who] += np.where(
            tables["waited"][kind], np.maximum(start - np.maximum(prepared, self.made[what]), 0), 0
        )
        leaves = start + parts.body[spot]
        self.free[who] = leaves + parts.after[spot]
        if filler is not None:
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
        filler = self.program.filler
        if filler is None:
            return free
        stage = who % len(self.setting.stages)
        each = self.times.weight[stage, 0]
        fits = np.where(gap > 0, (gap + filler.slack_ns[stage]) // np.maximum(each, 1), 0)
        count = np.minimum(self.waiting[who], fits)
        self.fills[position] += count
        self.waiting[who] -= count
        filled: Ints = free + count * each
        return filled

    def _put_off(self, who: Ints, kind: Ints) -> None:
        """After a backward one more waits; where that is too many, one runs now."""
        filler = self.program.filler
        if filler is None:
            return
        stages = len(self.setting.stages)
        stage = who % stages
        self.waiting[who] += kind % 2  # a filler has one chunk: kinds are forward, backward
        late = (self.waiting[who] > filler.most[stage]).astype(np.int64)
        self.waiting[who] -= late
        self.free[who] += late * self.times.weight[stage, 0]
        following = who * self.width + np.minimum(self.at[who] + 1, self.width - 1)
        inside = self.at[who] + 1 < self.width
        self.fills[following[inside]] += late[inside]


class Shared:
    """A link in turns while the rounds go: microbatch by microbatch, pipeline after pipeline."""

    __slots__ = ("_at", "_entry", "_free", "_link", "_out", "_turn", "_units", "_walk", "passages")

    def __init__(self, walk: Walk, link: Turns, units: list[int]) -> None:
        self._walk, self._link, self._units = walk, link, units
        self._turn, self._free = 0, 0
        self._out, self._entry = [0] * walk.pipelines, [0] * walk.pipelines
        stages = len(walk.setting.stages)
        backward = 0 if link.forward else walk.program.units
        self._at = [(c * stages + link.to) * walk.width + backward for c in range(walk.pipelines)]
        self.passages: list[Passage] = []

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
        link, begins = self._link, []
        for scatter, send, gather in zip(link.scatter_ns, link.send_ns, link.gather_ns, strict=True):
            spread = max(made, self._out[c])
            self._out[c] = spread + scatter
            sent = max(spread + scatter, self._free)
            self._free = sent + send
            collected = max(self._free + link.latency_ns, self._entry[c])
            self._entry[c] = collected + gather
            begins.append((spread, sent, collected))
        if self._walk.trace:
            columns = tuple(zip(*begins, strict=True))
            self.passages.append(Passage(link, c, unit, columns[0], columns[1], columns[2]))
        return self._entry[c]
