"""speedscope's JSON: one sampled profile per thread, of all its time, of its time on CPUs and of its time off them.

Source: speedscope's "file-format-spec" and the JSON schema in its package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

import unidle
from unidle.scope.export import names
from unidle.scope.export.encode import json_bytes, uncollected
from unidle.scope.export.protobuf import RowTable
from unidle.scope.model import Frame, Profile
from unidle.scope.samples import STATE_ORDER

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


@uncollected
def write(profile: Profile, *, lines: bool = True) -> bytes:
    """The profile as JSON. Weights of time are nanoseconds; memory has profiles of its own, in bytes."""
    table = RowTable()
    numbers = _frames(profile, table, lines)
    stacks = [[numbers[n] for n in stack] for stack in profile.stacks]
    waiting = table.place((f"[{names.STATES['runq']}]", "", 0))
    profiles = [*_time(profile, stacks, waiting), *_memory(profile, stacks)]
    facts = names.quality(profile)
    told = {
        "$schema": SCHEMA,
        "name": f"unidle {profile.tier}: {facts['samples']} samples in {profile.seconds:.1f} s",
        "exporter": f"unidle {unidle.__version__}; {names.quality_line(profile)}",
        "activeProfileIndex": 0,
        "shared": {"frames": [_shared(row) for row in table.rows]},
        "profiles": profiles or [_sampled("nothing was seen", "nanoseconds", [])],
        "unidle": {"quality": facts},
    }
    return json_bytes(told)


def _frames(profile: Profile, table: RowTable, lines: bool) -> list[int]:
    """The number of each frame that occurs, in the order in which stacks name them (others have none that counts)."""
    numbers = [-1] * len(profile.frames)
    for n in dict.fromkeys(chain.from_iterable(profile.stacks)):
        numbers[n] = table.place(_frame(profile.frames[n], lines))
    return numbers


def _frame(frame: Frame, lines: bool) -> tuple[str, str, int]:
    name = names.function_name(frame)
    where = names.visible(frame.file or ("[kernel]" if frame.kind == "kernel" else frame.module))
    return name, where, frame.line if lines else 0


def _shared(row: Any) -> dict[str, Any]:
    name, file, line = row
    return {"name": name} | ({"file": file} if file else {}) | ({"line": line} if line > 0 else {})


def _time(profile: Profile, stacks: list[list[int]], waiting: int) -> Iterator[dict[str, Any]]:
    rows: dict[tuple[int, int], list[tuple[int, list[int], int]]] = {}
    runq = STATE_ORDER.index("runq")
    for pid, tid, stack, state, _, ns in names.totals(profile):
        shown = [*stacks[stack], waiting] if state == runq else stacks[stack]
        rows.setdefault((pid, tid), []).append((state, shown, ns))
    processes, threads = names.process_labels(profile), names.threads_of(profile)
    longest_first = sorted(rows, key=lambda key: -sum(ns for _, _, ns in rows[key]))
    for pid, tid in longest_first:
        name = f"{processes[pid]}, {names.thread_label(tid, threads[pid][tid])}"
        seen = {state for state, _, _ in rows[pid, tid]}
        views = [("all", seen)] if len(seen) > 1 else []
        views += [(names.STATES[STATE_ORDER[state]], {state}) for state in sorted(seen)]
        for view, states in views:
            chosen = [(stack, ns) for state, stack, ns in rows[pid, tid] if state in states]
            yield _sampled(f"{name}: {view}", "nanoseconds", chosen)


def _memory(profile: Profile, stacks: list[list[int]]) -> Iterator[dict[str, Any]]:
    processes = names.process_labels(profile)
    places = sorted({(held.pid, held.device) for held in profile.memory})
    by_place: dict[tuple[int, str], list[Any]] = {place: [] for place in places}
    for held in profile.memory:
        by_place[held.pid, held.device].append(held)
    for (pid, device), rows in by_place.items():
        name = f"{processes[pid]}, memory of {names.visible(device)}"
        yield _sampled(f"{name}: live", "bytes", [(stacks[h.stack], h.live_bytes) for h in rows])
        yield _sampled(f"{name}: allocated", "bytes", [(stacks[h.stack], h.allocated_bytes) for h in rows])


def _sampled(name: str, unit: str, rows: Iterable[tuple[list[int], int]]) -> dict[str, Any]:
    kept = [(stack, weight) for stack, weight in rows if weight > 0]
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weight for _, weight in kept),
        "samples": [stack for stack, _ in kept],
        "weights": [weight for _, weight in kept],
    }
