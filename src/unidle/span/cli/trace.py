"""A simulated iteration as a trace for Perfetto: a process for each site, a track for each device and link.

The Chrome trace event format in its JSON form, as ``unidle ledger --format perfetto`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

from unidle.ledger.perfetto import metadata, microseconds
from unidle.span.simulate.iteration import Simulation
from unidle.span.simulate.timeline import OpRow, compute_rows
from unidle.span.simulate.uneven import Member, Modelled, Together, members

# Reserved colour names of the format.
COLOURS: Final = {
    "F": "thread_state_running", "B": "thread_state_iowait", "W": "rail_load", "R": "grey", "send": "rail_response",
    "scatter": "rail_idle", "gather": "rail_idle", "allreduce": "terrible",
}  # fmt: skip
_AT_ONCE: Final = 10_000


def write_trace(stream: BinaryIO, found: Iterable[Modelled]) -> None:
    """Operations of the first cell of each simulation (the others are equal), and what its devices hold.

    If pipelines differ, the first cell of each kind.
    """
    several = list(found)
    other = {"how": "modelled", "schedules": [each.result.schedule for each in several]}
    _write(stream, other, _simulated(several))


def write_timelines(stream: BinaryIO, timelines: Iterable[tuple[str, Iterable[OpRow]]]) -> None:
    """Timelines with their names, for instance ``measured`` and ``modelled``."""
    several, pids = dict(timelines), _Numbers()
    lines = (line for name, rows in several.items() for line in _operations(f"{name}: ", rows, pids))
    _write(stream, {"how": list(several)}, lines)


def _write(stream: BinaryIO, other: dict[str, Any], lines: Iterable[str]) -> None:
    stream.write(b'{"displayTimeUnit":"ns","otherData":' + json.dumps(other).encode() + b',"traceEvents":[\n')
    first, held = True, list[str]()
    for line in lines:
        held.append(line)
        if len(held) >= _AT_ONCE:
            stream.write((("" if first else ",\n") + ",\n".join(held)).encode())
            first, held = False, []
    stream.write((("" if first or not held else ",\n") + ",\n".join(held) + "\n]}\n").encode())


def _simulated(several: list[Modelled]) -> Iterator[str]:
    pids = _Numbers()
    for simulation in several:
        schedule = f"{simulation.result.schedule}: " if len(several) > 1 else ""
        if isinstance(simulation, Together):
            rows = simulation.rows(first_cells=True)
        else:
            rows = simulation.rows(simulation.setting.cell)
        yield from _operations(schedule, rows, pids)
        for member in members(simulation):
            yield from _memory(member, schedule, pids)


def _operations(before: str, rows: Iterable[OpRow], pids: _Numbers) -> Iterator[str]:
    """``before``: what the names of processes begin with."""
    tids = _Numbers()
    for row in rows:
        site = row.device_or_link.partition("/")[0]
        process = f"{before}{site}" if row.op in "FBWR" else f"{before}wires of {site}"
        pid, new = pids.of(process)
        if new:
            yield metadata("process_name", pid, 0, {"name": process})
            yield metadata("process_sort_index", pid, 0, {"sort_index": pid})
        tid, new = tids.of(row.device_or_link)
        if new:
            yield metadata("thread_name", pid, tid, {"name": row.device_or_link})
        yield _event(row, pid, tid)


class _Numbers:
    """Numbers names in the order in which they turn up, from 1."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def of(self, name: str) -> tuple[int, bool]:
        """The number, and whether the name is new."""
        known = len(self._at)
        return self._at.setdefault(name, known + 1), len(self._at) > known


def _event(row: OpRow, pid: int, tid: int) -> str:
    args = {"pipeline": row.pipeline, "stage": row.stage, "microbatch": row.microbatch, "chunk": row.chunk}
    if row.size_bytes:
        args["bytes"] = row.size_bytes
    name = row.op if row.microbatch < 0 else f"{row.op}{row.microbatch}"
    if row.of:
        name = f"{row.op} {row.of}{row.microbatch}"
    return (
        f'{{"ph":"X","name":"{name}","cat":"{row.op}","cname":"{COLOURS[row.op]}","pid":{pid},"tid":{tid}'
        f',"ts":{microseconds(row.start_ns)},"dur":{microseconds(row.end_ns - row.start_ns)},"args":{json.dumps(args)}}}'
    )


def _memory(member: Member, schedule: str, pids: _Numbers) -> Iterator[str]:
    """What each device holds, as a counter that changes with its operations."""
    simulation = member.simulation
    setting, program, run = simulation.setting, simulation.program, simulation.run
    for pipeline in range(setting.cell):
        for stage in range(len(setting.stages)):
            rows = compute_rows(setting, program, run, pipeline, pipeline % run.pipelines, stage)
            pid, _ = pids.of(f"{schedule}{setting.sites[setting.site_of[stage]].name}")
            held = setting.held_bytes(stage)
            name = json.dumps(f"memory of {member.device(pipeline, stage)}")
            for when, change in sorted(each for row in rows for each in _changes(simulation, row)):
                held += change
                yield f'{{"ph":"C","name":{name},"pid":{pid},"ts":{microseconds(when)},"args":{{"bytes":{held}}}}}'


def _changes(simulation: Simulation, row: OpRow) -> Iterator[tuple[int, int]]:
    setting, chunks = simulation.setting, simulation.program.chunks
    stage = setting.stages[row.stage]
    kept = (row.chunk + 1) * stage.kept_bytes // chunks - row.chunk * stage.kept_bytes // chunks
    size = setting.entering_bytes(row.stage, row.chunk)
    again = bool(simulation.program.again[row.stage, row.chunk * setting.microbatches + row.microbatch])
    if row.op == "F":
        yield row.start_ns, size + (0 if again or not stage.recompute_ns else kept)
    elif row.op == "R" or (row.op == "B" and not stage.recompute_ns):
        yield row.start_ns, kept
    elif row.op == "W":
        yield row.end_ns, -size - kept
