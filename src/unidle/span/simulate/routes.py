"""Where the result of each operation goes, over which wire, how long that takes; tables for one program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unidle.span.model.cost import wire_ns
from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Flags, Ints, Program, split

LANES = 4  # wires that leave a device: to the next stage, the one before, and around the ends


@dataclass(frozen=True, slots=True)
class Turns:
    """A link between sites that the pipelines of a cell share in turns, in one direction.

    ``scatter_ns``, ``send_ns``, ``gather_ns`` have an entry for each piece; ``width`` nodes send at once.
    """

    stage: int
    to: int
    forward: bool
    width: int
    latency_ns: int
    scatter_ns: tuple[int, ...]
    send_ns: tuple[int, ...]
    gather_ns: tuple[int, ...]
    piece_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """Tables of shape ``(stages, 2 * chunks)``: forward of each chunk, then backward of each.

    ``to``: the stage that waits for it (-1: none); ``code``: what to add to the operation's code for the one that
    waits; ``lane``: the wire, of :data:`LANES`; ``turns``: index of the shared link, -1 for a wire of its own;
    ``wan``: whether sites are crossed.
    """

    to: Ints
    code: Ints
    lane: Ints
    wire_ns: Ints
    latency_ns: Ints
    wan: Flags
    shared: Ints
    turns: tuple[Turns, ...]


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Nanoseconds of each part of a unit, shape ``(stages, chunks)``."""

    forward: Ints
    backward: Ints
    weight: Ints
    again: Ints


def times_of(setting: Setting, chunks: int) -> UnitTimes:
    """The stages' times, cut into chunks."""

    def cut(name: str) -> Ints:
        return split(np.array([getattr(stage, name) for stage in setting.stages], dtype=np.int64), chunks)

    return UnitTimes(cut("forward_ns"), cut("backward_ns"), cut("weight_ns"), cut("recompute_ns"))


def routes_of(setting: Setting, program: Program) -> Routes:
    """The tables of a program."""
    stages, chunks, units = len(setting.stages), program.chunks, program.units
    shape = (stages, 2 * chunks)
    to, code, lane, wire, latency, shared = (np.zeros(shape, dtype=np.int64) for _ in range(6))
    wan = np.zeros(shape, dtype=np.bool_)
    to[:], shared[:] = -1, -1
    turns: list[Turns] = []
    flows = None if program.max_flows else setting.baseline_flows
    for s, group in np.ndindex(shape):
        forward, chunk = group < chunks, group % chunks
        there = _next(s, chunk, stages, chunks) if forward else _before(s, chunk, stages)
        if there is None:
            if forward:  # the last forward is what the first backward waits for
                to[s, group], code[s, group] = s, units
            continue
        to[s, group] = there[0]
        code[s, group] = (there[1] - chunk) * setting.microbatches
        lane[s, group] = _lane(s, there[0], stages)
        path, size = setting.path(s, there[0]), setting.crossing_bytes(s, there[0])
        if path is None:
            wire[s, group] = wire_ns(size, setting.local) if there[0] != s else 0
            continue
        wan[s, group] = True
        latency[s, group] = path.latency_ns
        wire[s, group] = wire_ns(size, path.rate_gbps(flows))
        width = share_width(setting, s, there[0], program)
        if width > 1:
            shared[s, group] = len(turns)
            turns.append(_turns(setting, program, s, there[0], forward, width))
    return Routes(to, code, lane, wire, latency, wan, shared, tuple(turns))


def waits_over_wan(routes: Routes, microbatches: int) -> Flags:
    """Whether an operation's input comes from another site, shape ``(stages, 2 * chunks)``."""
    waited = np.zeros(routes.wan.shape, dtype=np.bool_)
    for s, group in np.argwhere(routes.wan):
        waited[routes.to[s, group], group + int(routes.code[s, group]) // microbatches] = True
    return waited


def share_width(setting: Setting, stage: int, to: int, program: Program) -> int:
    """How many nodes send at once; 1 where each pipeline has its own link."""
    if program.share.how == "own":
        return 1
    return setting.cell * (widest(setting, stage, to) if program.share.wide else 1)


def widest(setting: Setting, stage: int, to: int) -> int:
    """Pairs of nodes that one pipeline has between the sites of two stages."""
    if not setting.wide:
        return 1
    a, b = setting.sites[setting.site_of[stage]], setting.sites[setting.site_of[to]]
    return min(a.stages, b.stages)


def parts(whole: int, count: int) -> tuple[int, ...]:
    """``whole`` in near-equal parts, as whole numbers that sum to it."""
    return tuple((k + 1) * whole // count - k * whole // count for k in range(count))


def _turns(setting: Setting, program: Program, s: int, to: int, forward: bool, width: int) -> Turns:
    path = setting.path(s, to)
    if path is None:
        raise ValueError("there is no link between these stages")
    rate = path.rate_gbps(None if program.max_flows else setting.baseline_flows)
    size = setting.crossing_bytes(s, to)
    pieces = parts(size, min(program.share.pieces, max(size, 1)))
    # The largest share decides when all have sent, the smallest own one how much is scattered.
    send = tuple(wire_ns(-(-piece // width), rate) for piece in pieces)
    local = tuple(wire_ns(piece - piece // width, setting.local) for piece in pieces)
    return Turns(s, to, forward, width, path.latency_ns, local, send, local, pieces)


def _next(s: int, chunk: int, stages: int, chunks: int) -> tuple[int, int] | None:
    if s + 1 < stages:
        return s + 1, chunk
    return (0, chunk + 1) if chunk + 1 < chunks else None


def _before(s: int, chunk: int, stages: int) -> tuple[int, int] | None:
    if s > 0:
        return s - 1, chunk
    return (stages - 1, chunk - 1) if chunk > 0 else None


def _lane(s: int, to: int, stages: int) -> int:
    if to == s + 1:
        return 0
    if to == s - 1:
        return 1
    return 2 if (s, to) == (stages - 1, 0) else 3
