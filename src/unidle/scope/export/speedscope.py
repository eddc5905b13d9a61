"""speedscope's JSON: one sampled profile per thread, of all its time, of its time on CPUs and of its time off them.

Source: speedscope's "file-format-spec" and the JSON schema in its package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import unidle
from unidle.scope.export import names
from unidle.scope.export.wire import Table
from unidle.scope.model import Profile

SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def write(profile: Profile, *, lines: bool = True) -> bytes:
    """The profile as JSON. Weights of time are nanoseconds; memory has profiles of its own, in bytes."""
    table = Table()
    stacks = [tuple(table.place(_frame(profile, n, lines)) for n in stack) for stack in profile.stacks]
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
    return json.dumps(told, separators=(",", ":")).encode()


def _frame(profile: Profile, number: int, lines: bool) -> tuple[str, str, int]:
    frame = profile.frames[number]
    name = names.function_name(frame)
    where = names.visible(frame.file or ("[kernel]" if frame.kind == "kernel" else frame.module))
    return name, where, frame.line if lines else 0


def _shared(row: Any) -> dict[str, Any]:
    name, file, line = row
    return {"name": name} | ({"file": file} if file else {}) | ({"line": line} if line > 0 else {})


def _time(profile: Profile, stacks: list[tuple[int, ...]], waiting: int) -> Iterator[dict[str, Any]]:
    rows: dict[tuple[int, int], list[tuple[str, tuple[int, ...], int]]] = {}
    for (pid, tid, stack, state), (_, ns) in names.totals(profile).items():
        shown = (*stacks[stack], waiting) if state == "runq" else stacks[stack]
        rows.setdefault((pid, tid), []).append((state, shown, ns))
    processes, threads = names.process_labels(profile), names.threads_of(profile)
    longest_first = sorted(rows, key=lambda key: -sum(ns for _, _, ns in rows[key]))
    for pid, tid in longest_first:
        name = f"{processes[pid]}, {names.thread_label(tid, threads[pid][tid])}"
        seen = {state for state, _, _ in rows[pid, tid]}
        views = [("all", frozenset(names.STATE_ORDER))] if len(seen) > 1 else []
        views += [(names.STATES[state], frozenset({state})) for state in names.STATE_ORDER if state in seen]
        for view, states in views:
            chosen = [(stack, ns) for state, stack, ns in rows[pid, tid] if state in states]
            yield _sampled(f"{name}: {view}", "nanoseconds", chosen)


def _memory(profile: Profile, stacks: list[tuple[int, ...]]) -> Iterator[dict[str, Any]]:
    processes = names.process_labels(profile)
    places = sorted({(held.pid, held.device) for held in profile.memory})
    by_place: dict[tuple[int, str], list[Any]] = {place: [] for place in places}
    for held in profile.memory:
        by_place[held.pid, held.device].append(held)
    for (pid, device), rows in by_place.items():
        name = f"{processes[pid]}, memory of {names.visible(device)}"
        yield _sampled(f"{name}: live", "bytes", [(stacks[h.stack], h.live_bytes) for h in rows])
        yield _sampled(f"{name}: allocated", "bytes", [(stacks[h.stack], h.allocated_bytes) for h in rows])


def _sampled(name: str, unit: str, rows: Iterable[tuple[tuple[int, ...], int]]) -> dict[str, Any]:
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
