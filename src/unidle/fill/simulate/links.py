"""Rows of links: transfers of training as they happened, and hand-offs of keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from unidle.span.model.setting import Setting
from unidle.span.simulate.dynamic import SentPiece
from unidle.span.simulate.iteration import Simulation
from unidle.span.simulate.routes import routes_of
from unidle.span.simulate.timeline import node_pairs


class LinkRow(NamedTuple):
    """As :class:`unidle.span.simulate.timeline.OpRow`, with hand-offs; ``unit``: the microbatch, or the number of the request."""

    link: str
    op: Literal["send", "scatter", "gather", "handoff"]
    device: int
    unit: int
    start_ns: int
    end_ns: int
    chunk: int
    size_bytes: int
    of: str


def link_rows(simulation: Simulation, sent: Iterable[SentPiece]) -> Iterator[LinkRow]:
    """Transfers of training. What is spread over several nodes has a row for each pair of them."""
    setting, program = simulation.setting, simulation.program
    turns, stages, each = routes_of(setting, program).turns, len(setting.stages), setting.microbatches
    for piece in sent:
        unit, of = piece.code % program.units, "F" if piece.code < program.units else "B"
        stage, to = piece.device % stages, piece.to % stages
        sender, receiver = (_name(setting, device) for device in (piece.device, piece.to))
        key = (piece.device, unit % each)
        if piece.link < 0:
            size = setting.crossing_bytes(stage, to)
            yield LinkRow(f"{sender}>{receiver}", "send", *key, *piece.send, unit // each, size, of)
            continue
        link = turns[piece.link]
        size = link.piece_bytes[piece.piece]
        spread = size - size // link.width
        near, far = (setting.sites[setting.site_of[s]].name for s in (stage, to))
        yield LinkRow(f"{sender}:to-{far}", "scatter", *key, *piece.scatter, 0, spread, of)
        cell = piece.device // stages // setting.cell * setting.cell
        for k, pair in enumerate(node_pairs(setting, program, stage, to, cell)):
            share = (k + 1) * size // link.width - k * size // link.width
            yield LinkRow(pair, "send", *key, *piece.send, 0, share, of)
        yield LinkRow(f"{receiver}:from-{near}", "gather", *key, *piece.gather, 0, spread, of)


def handoff_row(
    setting: Setting, device: int, request: int, times_ns: tuple[int, int], size_bytes: int
) -> LinkRow:
    """Keys and values of a request leave a device."""
    return LinkRow(
        f"{_name(setting, device)}:kv", "handoff", device, request, *times_ns, 0, size_bytes, "prefill"
    )


def _name(setting: Setting, device: int) -> str:
    return setting.device(*divmod(device, len(setting.stages)))
