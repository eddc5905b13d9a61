"""From a simulated schedule to the plan that real ranks follow: one JSON object, the same for all of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from unidle.errors import CannotRun
from unidle.span.model.link import WINDOW_MBIT, Path
from unidle.span.model.setting import Setting
from unidle.span.model.training import Training
from unidle.span.simulate.iteration import Simulation
from unidle.span.simulate.uneven import Member, Modelled, members, microbatches_of

VERSION: Final = 1
FLOWS: Final = (4, 64)  # TCP flows between two nodes: the least, the most

CHUNK_BYTES: Final = (16 << 10, 512 << 10)  # what one flow carries at a time: the least, the most

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Identifies one attempt. ``resume``: the step of the checkpoint to resume from, None for the newest."""

    name: str
    attempt: int = 0
    resume: int | None = None
    digest: str | None = None


def plan_of(
    training: Training,
    simulation: Modelled,
    addresses: Mapping[str, Address],
    run: AttemptKey,
    cut: tuple[int, ...] | None,
    names: Mapping[str, str],
    speeds: Sequence[float] | None = None,
    stated: Setting | None = None,
) -> dict[str, Any]:
    """The plan. ``cut``: layers of each part in the model's order; ``addresses``: of each device's endpoint.

    ``names``: of the ranks of the setting's devices, also in ``addresses``. ``speeds``: of each pipeline, at which its
    devices are paced. ``stated``: the setting of the file, where the simulated one has what was measured: it paces the
    devices and has the links that are used.

    Errors: :class:`CannotRun` where groups of pipelines have other numbers of chunks.
    """
    setting = simulation.setting
    return {
        "version": VERSION,
        "run": run.name,
        "attempt": run.attempt,
        "resume": run.resume,
        "model": {
            "build": training.build, "arguments": dict(training.arguments), "dtype": training.dtype,
            "cut": None if cut is None else ranges(cut), "digest": run.digest,
        },
        "loss": training.loss,
        "data": training.data,
        "optimizer": {"name": training.optimizer, "arguments": dict(training.optimizer_arguments)},
        "clip_norm": training.clip_norm,
        "steps": training.steps,
        "seed": training.seed,
        "microbatch": training.microbatch,
        "microbatches": list(microbatches_of(simulation)),
        "chunks": chunks_of(simulation),
        "devices": _devices(training, simulation, addresses, names),
        "links": _links(simulation, stated or setting),
        "cell": setting.cell,
        "checkpoint": None if training.saving is None else {
            "directory": training.saving.directory, "every": training.saving.every, "keep": training.saving.keep,
        },
        "pace": _pace(stated or setting, speeds) if training.paced else None,
        "tls": None if training.tls is None else dict(training.tls),
        "changes_semantics": {"activations": None, "outer": None} | dict(training.semantics),
        "trace": True,
    }  # fmt: skip


def ranges(cut: tuple[int, ...]) -> list[list[int]]:
    """``[first, end)`` of each part, from how many layers it has."""
    ends = list(accumulate(cut))
    return [[end - count, end] for count, end in zip(cut, ends, strict=True)]


def chunks_of(simulation: Modelled) -> int:
    """Parts of a stage. Errors: :class:`CannotRun` where groups of pipelines differ: all have the same model on a device."""
    found = sorted({each.simulation.program.chunks for each in members(simulation)})
    if len(found) > 1:
        raise CannotRun(
            f"cuts a stage into {found[0]} and {found[-1]} chunks, by the pipeline", field="schedule",
            value=simulation.result.schedule, remedy="use another schedule, or equal pipelines",
        )  # fmt: skip
    return found[0]


def orders(simulation: Modelled) -> dict[str, list[tuple[str, int, int]]]:
    """What each device does one after the other: operation (F, B, W, R), microbatch, chunk."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for row in simulation.rows():
        if row.op in ("F", "B", "W", "R"):
            found.setdefault(row.device_or_link, []).append((row.op, row.microbatch, row.chunk))
    return found


def _devices(
    training: Training, simulation: Modelled, addresses: Mapping[str, Address], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    setting, found = simulation.setting, orders(simulation)
    joined = {p: each.simulation.program.joined for each in members(simulation) for p in each.pipelines}
    made = []
    for pipeline in range(setting.pipelines):
        for stage, site in enumerate(setting.site_of):
            name = setting.device(pipeline, stage)
            made.append({
                "device": names[name], "site": setting.sites[site].name, "pipeline": pipeline, "stage": stage,
                "address": list(addresses[names[name]]), "order": [list(step) for step in found[name]],
                "joined": joined[pipeline], "torch_device": training.device,
            })  # fmt: skip
    return made


def _links(simulation: Modelled, stated: Setting) -> list[dict[str, Any]]:
    """Between neighbouring stages, and around the ends where stages are in chunks; once if all groups use the same links."""
    first, *others = [(each, _links_of(each, stated)) for each in members(simulation)]
    if all(links == first[1] for _, links in others):
        return first[1]
    return [{**link, "pipelines": list(each.pipelines)} for each, links in (first, *others) for link in links]


def _links_of(member: Member, stated: Setting) -> list[dict[str, Any]]:
    setting, program = member.simulation.setting, member.simulation.program
    last = len(setting.stages) - 1
    pairs = [(s, s + 1) for s in range(last)]
    if program.chunks > 1 and last > 1:
        pairs.append((last, 0))
    flows = None if program.max_flows else setting.baseline_flows
    return [_link(stated, s, to, member.simulation, flows) for s, to in pairs]


def _link(stated: Setting, s: int, to: int, simulation: Simulation, flows: int | None) -> dict[str, Any]:
    path, share = stated.path(s, to), simulation.program.share
    turns = path is not None and share.how == "turns" and simulation.setting.cell > 1
    return {
        "from": s, "to": to, "wan": path is not None,
        "flows": 1 if path is None else (flows or flows_of(path)),
        "share": "turns" if turns else "own", "pieces": share.pieces if turns else 1,
        "latency_ns": 0 if path is None else path.latency_ns, "rate_bytes_per_s": 0 if path is None else round(path.rate_gbps(None) * 1e9 / 8),
        "chunk_bytes": 0 if path is None else _chunk_bytes(stated.crossing_bytes(s, to), flows or flows_of(path)),
    }  # fmt: skip


def _chunk_bytes(size: int, flows: int) -> int:
    """So that each message of so many bytes is spread over all flows and arrives before the next one, and not with it."""
    least, most = CHUNK_BYTES
    return min(max(size // flows, least), most)


def flows_of(path: Path) -> int:
    """How many TCP flows fill a path, half as many again for those that lose their turn."""
    limits = [link.flow_gbps for link in path.links if link.flow_gbps is not None]
    one = min(limits) if limits else (WINDOW_MBIT * 1e6 / path.latency_ns if path.latency_ns else math.inf)
    least, most = FLOWS
    return min(max(math.ceil(1.5 * path.rate_gbps(None) / one), least), most)


def _pace(setting: Setting, speeds: Sequence[float] | None) -> dict[str, Any]:
    """Times of each stage, and how fast each pipeline's devices are compared with them."""
    times = {
        f"{name}_ns": [int(getattr(stage, f"{name}_ns")) for stage in setting.stages]
        for name in ("forward", "backward", "weight", "recompute")
    }
    return times if speeds is None else {**times, "speeds": list(speeds)}
