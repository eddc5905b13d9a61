"""Orders of the simulator's schedules, as the launcher puts them into a plan."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.simulate.iteration import Simulation, simulate
from unidle.span.simulate.schedules import SCHEDULES

MS = 1_000_000


def setting(stages: int, microbatches: int, pipelines: int = 1, cell: int = 1, kept: int = 100) -> Setting:
    """Stages in sites of their own, far from each other; activations are worth making again."""
    shape = Stage(2 * MS, 2 * MS, 2 * MS, MS, kept, 10)
    sites = tuple(Site(f"site{s}", 1) for s in range(stages))
    links = tuple(WanLink(a.name, b.name, 3 * MS, 0.001) for a, b in pairwise(sites))
    return Setting(
        (shape,) * stages, microbatches, sites, links, pipelines, cell, 300, 0, 2000, 10.0, chunks=2
    )  # fmt: skip


def scheduled(name: str, stages: int, microbatches: int, pipelines: int = 1, cell: int = 1) -> Simulation:
    return simulate(setting(stages, microbatches, pipelines, cell), SCHEDULES[name])


def orders(done: Simulation) -> list[list[list[list[Any]]]]:
    """``[pipeline][stage]``: operations by their start."""
    found: list[list[list[Any]]] = [[[] for _ in done.setting.stages] for _ in range(done.setting.pipelines)]
    for row in sorted(done.rows(), key=lambda row: (row.start_ns, row.end_ns)):
        if row.op in ("F", "R", "B", "W"):
            found[row.pipeline][row.stage].append([row.op, row.microbatch, row.chunk])
    return found


def fields(done: Simulation) -> dict[str, Any]:
    """What of a plan follows from the schedule; for :func:`rank_span.runs.plan`."""
    program, stages = done.program, len(done.setting.stages)
    how = {"wan": True, "flows": 2, "share": program.share.how, "pieces": max(program.share.pieces, 1)}
    return {
        "stages": stages, "microbatches": (done.setting.microbatches,) * done.setting.pipelines, "orders": orders(done),
        "chunks": program.chunks, "cell": done.setting.cell, "joined": program.joined,
        "links": [{"from": s, "to": s + 1, **how} for s in range(stages - 1)],
    }  # fmt: skip
