"""A modelled iteration as rows of the ledger: every nanosecond of every device has one cause. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from unidle.ledger.rows import Row
from unidle.span.simulate import Simulation
from unidle.span.timeline import Row as Operation

OBSERVER = "span"
_LEAF = {"F": "useful", "B": "useful", "W": "useful", "R": "recompute", "allreduce": "exposed_local"}


def ledger_rows(simulation: Simulation) -> Iterator[Row]:
    """Rows of all devices from 0 to the iteration's end, without gaps, ``modelled``.

    A device's waits for transfers between sites are as long together as the simulation says; the longest waits are
    taken for them, the rest is bubble.
    """
    setting, run = simulation.setting, simulation.run
    by_device: dict[str, list[Operation]] = {}
    for row in simulation.rows():
        if row.op in _LEAF:
            by_device.setdefault(row.device_or_link.removesuffix(":ring"), []).append(row)
    for pipeline in range(setting.pipelines):
        for stage in range(len(setting.stages)):
            name = setting.device(pipeline, stage)
            exposed = int(run.exposed_ns[pipeline % run.pipelines * len(setting.stages) + stage])
            yield from _device(name, by_device.get(name, []), exposed, simulation)


def _device(name: str, operations: list[Operation], exposed: int, simulation: Simulation) -> Iterator[Row]:
    end = simulation.result.iteration_ns
    ordered = sorted(operations, key=lambda row: (row.start_ns, row.end_ns))
    waits, free = list[tuple[int, int]](), 0
    for row in ordered:
        if row.start_ns > free:
            waits.append((free, row.start_ns))
        free = max(free, row.end_ns)
    pieces = [(row.start_ns, row.end_ns, _LEAF[row.op]) for row in ordered if row.end_ns > row.start_ns]
    for start, stop in sorted(waits, key=lambda wait: wait[0] - wait[1]):
        wan = min(exposed, stop - start)
        exposed -= wan
        pieces += [(start, stop - wan, "bubble"), (stop - wan, stop, "exposed_wan")]
    pieces.append((free, end, "bubble"))
    job = f"span {simulation.result.schedule}"
    for start, stop, leaf in sorted(pieces):
        if stop > start:
            yield Row(name, name, start, stop, leaf, job, 1, 1, 1_000_000, "modelled", OBSERVER, 0)
