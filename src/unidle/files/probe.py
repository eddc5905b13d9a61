"""The plan of a probe as JSON, and what the probe measured (see ``unidle.rank.probe``)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from unidle.files.document import BadFile
from unidle.files.load import read_text, source_name
from unidle.fleet import Fleet
from unidle.fleet.probing import Flow, FlowSample, Phase

FORMAT: Final = "unidle-probe"
VERSION: Final = 1
_LARGEST: Final = 256 << 20


def plan_as_json(phases: Sequence[Phase]) -> str:
    """What ``unidle.rank.probe`` reads: nodes, and phases whose flows are numbered from ``first`` on."""
    first, written = 0, []
    for phase in phases:
        flows = [[f.source, f.target, f.above, f.beside] for f in phase.flows]
        written.append({"kind": phase.kind, "first": first, "flows": flows})
        first += len(flows)
    nodes = dict.fromkeys(node for phase in phases for f in phase.flows for node in (f.source, f.target))
    return json.dumps({"nodes": list(nodes), "phases": written})


class _Phase(msgspec.Struct, frozen=True):
    kind: str
    flows: tuple[tuple[str, str, str, str], ...]
    measured: tuple[tuple[float, int], ...]


class _Result(msgspec.Struct, frozen=True):
    format: str
    version: int
    phases: tuple[_Phase, ...]


def load_result(path: str | os.PathLike[str], fleet: Fleet) -> list[tuple[Phase, tuple[FlowSample, ...]]]:
    """Read what a probe of ``fleet`` measured. :class:`BadInput` names file, field, value and remedy."""
    text, source = read_text(path, what="probe result", limit_bytes=_LARGEST), source_name(path)
    again = "run the probe again with the plan of this fleet file"
    try:
        found = msgspec.json.decode(text, type=_Result)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        problem, _, at = str(error).partition(" - at `")
        raise BadFile(source, f"cannot be read: {problem}", field=at.rstrip("`").lstrip("$.") or None, remedy=again) from None  # fmt: skip
    if (found.format, found.version) != (FORMAT, VERSION):
        raise BadFile(source, "is not a probe's result of this version", field="format", value=f"{found.format} {found.version}", remedy=again)  # fmt: skip
    known = {tier.id for tier in fleet.tiers} | {node.id for node in fleet.nodes}
    answer = []
    for k, phase in enumerate(found.phases):
        if len(phase.flows) != len(phase.measured):
            raise BadFile(source, "has lost measurements", field=f"phases[{k}]", value=len(phase.measured), remedy=again)  # fmt: skip
        for flow in phase.flows:
            if stranger := next((name for name in flow if name not in known), None):
                raise BadFile(source, "is not in the fleet file", field=f"phases[{k}].flows", value=stranger, remedy=again)  # fmt: skip
        for rate, way_ns in phase.measured:
            if not 0 <= rate < 1e15 or way_ns < 0:
                raise BadFile(source, "is no rate or time", field=f"phases[{k}].measured", value=[rate, way_ns], remedy=again)  # fmt: skip
        flows = tuple(Flow(*flow) for flow in phase.flows)
        measured = tuple(FlowSample(flow, rate, way) for flow, (rate, way) in zip(flows, phase.measured, strict=True) if rate)  # fmt: skip
        answer.append((Phase(phase.kind, flows), measured))
    return answer
