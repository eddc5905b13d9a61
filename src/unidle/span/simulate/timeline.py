"""Every operation of a run as a row, for files, pictures and the checker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from unidle.span.model.setting import Setting
from unidle.span.simulate.engine import IterationRun
from unidle.span.simulate.program import Program
from unidle.span.simulate.routes import widest
from unidle.span.simulate.walk import Passage

Op = Literal["F", "B", "W", "R", "send", "scatter", "gather", "allreduce"]


class OpRow(NamedTuple):
    """One operation. ``device_or_link``: ``site/pipeline/stage``, or wires between two such names and inside a site.

    ``stage`` of a transfer is the one that sends; ``microbatch`` of an all-reduce is -1. ``size_bytes`` of what is not
    a transfer is 0. A ``send`` lasts as long as the wire is taken: it arrives the latency later.
    """

    device_or_link: str
    op: Op
    pipeline: int
    stage: int
    microbatch: int
    start_ns: int
    end_ns: int
    chunk: int = 0
    size_bytes: int = 0
    of: str = ""  # of a transfer: F or B, what it carries the result of


def rows(
    setting: Setting, program: Program, run: IterationRun, pipelines: int | None = None
) -> Iterator[OpRow]:
    """All rows of all pipelines, device by device, then transfers; ``run`` has its trace.

    ``pipelines``: of the first ones only, whole cells.
    """
    many = setting.pipelines if pipelines is None else pipelines
    for pipeline in range(many):
        seen = pipeline % run.pipelines
        for stage in range(len(setting.stages)):
            yield from compute_rows(setting, program, run, pipeline, seen, stage)
            yield from _sends(setting, program, run, pipeline, seen, stage)
    for cell in range(0, many, run.pipelines):
        for passage in run.passages:
            yield from _passage(setting, program, passage, cell)
    yield from _reduce(setting, run, many)


def compute_rows(
    setting: Setting, program: Program, run: IterationRun, pipeline: int, seen: int, stage: int
) -> Iterator[OpRow]:
    """What a device computes, in order; ``seen``: the pipeline of the run that is like ``pipeline``."""
    name, each, units = setting.device(pipeline, stage), setting.microbatches, program.units
    at = seen * len(setting.stages) + stage
    forward, backward, weight, again = (
        table[stage].tolist()
        for table in (run.times.forward, run.times.backward, run.times.weight, run.times.again)
    )
    order, starts = program.order[stage].tolist(), run.starts[at].tolist()
    fills = run.fills[at].tolist() if program.filler else []
    put_off: list[int] = []
    now, done = 0, 0

    def row(op: Op, unit: int, start: int, length: int) -> OpRow:
        return OpRow(name, op, pipeline, stage, unit % each, start, start + length, unit // each)

    def weights(count: int) -> Iterator[OpRow]:
        nonlocal now
        for _ in range(count):
            unit = put_off.pop(0)
            yield row("W", unit, now, weight[unit // each])
            now += weight[unit // each]

    for k, (code, start) in enumerate(zip(order, starts, strict=True)):
        if fills:
            yield from weights(fills[k] - done)
            done = fills[k]
        unit = code % units
        chunk, begin = unit // each, start
        if code < units:
            yield row("F", unit, start, forward[chunk])
            now = start + forward[chunk]
        else:
            if program.again[stage, unit] and setting.stages[stage].recompute_ns:
                begin = start - again[chunk] if program.early else start
                yield row("R", unit, begin, again[chunk])
                begin += again[chunk]
            yield row("B", unit, begin, backward[chunk])
            now = begin + backward[chunk]
            put_off.append(unit)
        if not fills:
            yield from weights(int(program.weights_after[stage, k]))
    yield from weights(len(put_off))


def _sends(
    setting: Setting, program: Program, run: IterationRun, pipeline: int, seen: int, stage: int
) -> Iterator[OpRow]:
    """Transfers over wires of this device's own."""
    routes, each, units = run.routes, setting.microbatches, program.units
    for group in range(2 * program.chunks):
        to, wire = int(routes.to[stage, group]), int(routes.wire_ns[stage, group])
        if to in (-1, stage) or routes.shared[stage, group] >= 0:
            continue
        if not wire and not routes.wan[stage, group]:
            continue
        chunk = group % program.chunks
        offset = 0 if group < program.chunks else units
        first = offset + chunk * each + int(routes.code[stage, group])
        arrivals = run.ready[seen * len(setting.stages) + to, first : first + each].tolist()
        name = f"{setting.device(pipeline, stage)}>{setting.device(pipeline, to)}"
        late = int(routes.latency_ns[stage, group])
        for microbatch, arrival in enumerate(arrivals):
            end = arrival - late
            yield OpRow(
                name, "send", pipeline, stage, microbatch, end - wire, end, chunk, setting.crossing_bytes(stage, to),
                "B" if offset else "F",
            )  # fmt: skip


def _passage(setting: Setting, program: Program, passage: Passage, cell: int) -> Iterator[OpRow]:
    link, here = passage.turns, cell + passage.pipeline
    of = "F" if link.forward else "B"
    microbatch = passage.unit % setting.microbatches
    sender, receiver = setting.device(here, link.stage), setting.device(here, link.to)
    pairs = list(node_pairs(setting, program, link.stage, link.to, cell))
    far, near = setting.sites[setting.site_of[link.to]].name, setting.sites[setting.site_of[link.stage]].name
    for piece, size in enumerate(link.piece_bytes):
        start, sent, collected = passage.scatter_ns[piece], passage.send_ns[piece], passage.gather_ns[piece]
        spread = size - size // link.width
        end = start + link.scatter_ns[piece]
        yield OpRow(f"{sender}:to-{far}", "scatter", here, link.stage, microbatch, start, end, 0, spread, of)
        for k, pair in enumerate(pairs):
            share = (k + 1) * size // link.width - k * size // link.width
            end = sent + link.send_ns[piece]
            yield OpRow(pair, "send", here, link.stage, microbatch, sent, end, 0, share, of)
        end = collected + link.gather_ns[piece]
        yield OpRow(
            f"{receiver}:from-{near}", "gather", here, link.stage, microbatch, collected, end, 0, spread, of
        )


def node_pairs(setting: Setting, program: Program, stage: int, to: int, cell: int) -> Iterator[str]:
    """The pairs of nodes that a transfer in turns is spread over, ``cell`` being the first pipeline of it."""
    count = widest(setting, stage, to) if program.share.wide else 1
    step = 1 if to > stage else -1
    for pipeline in range(cell, cell + setting.cell):
        for k in range(count):
            yield f"{setting.device(pipeline, stage - k * step)}>{setting.device(pipeline, to + k * step)}"


def _reduce(setting: Setting, run: IterationRun, pipelines: int) -> Iterator[OpRow]:
    stages = len(setting.stages)
    for stage in range(stages):
        if not setting.stages[stage].gradient_bytes or setting.pipelines == 1 or setting.local is None:
            continue
        length = setting.reduce_ns(stage)
        start = int(run.ends[stage::stages].max())
        size = 2 * (setting.pipelines - 1) * setting.stages[stage].gradient_bytes // setting.pipelines
        for pipeline in range(pipelines):
            name = f"{setting.device(pipeline, stage)}:ring"
            yield OpRow(name, "allreduce", pipeline, stage, -1, start, start + length, 0, size)
