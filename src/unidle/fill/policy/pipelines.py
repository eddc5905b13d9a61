"""Inference pipelines: devices of one site that prefill a model together, those with the same waits next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FillDevice:
    """A device of training. ``resident_bytes``: memory that training leaves at its fullest moment, whatever it does."""

    number: int
    site: int
    stage: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class InferencePipeline:
    """``devices``: in the order of its stages. ``resident_bytes``: for keys and values on each, in addition to the weights."""

    devices: tuple[int, ...]
    resident_bytes: int


def pipelines_of(devices: Sequence[FillDevice], pp: int, weight_bytes: int) -> tuple[InferencePipeline, ...]:
    """As many as fit into the sites. A device whose memory cannot hold the weights is left out.

    Devices of the same stage of training wait at nearly the same times, so they are neighbours; what is left over of a stage
    is joined with the next stage of its site.
    """
    by_site: dict[int, list[FillDevice]] = {}
    for each in sorted(devices, key=lambda each: (each.site, each.stage, each.number)):
        if each.resident_bytes >= weight_bytes:
            by_site.setdefault(each.site, []).append(each)
    found = list[InferencePipeline]()
    for there in by_site.values():
        whole, rest = list[list[FillDevice]](), list[FillDevice]()
        for stage in dict.fromkeys(each.stage for each in there):
            own = [each for each in there if each.stage == stage]
            even = len(own) // pp * pp
            whole += [own[k : k + pp] for k in range(0, even, pp)]
            rest += own[even:]
        whole += [rest[k : k + pp] for k in range(0, len(rest) // pp * pp, pp)]
        for group in whole:
            room = min(each.resident_bytes for each in group) - weight_bytes
            found.append(InferencePipeline(tuple(each.number for each in group), room))
    return tuple(found)
