"""What the page needs of one or two profiles: a tree of all stacks, and rows of time and memory that point into it.

Columns are little-endian numbers, deflated. The tree is in depth-first order, so a parent stands before its children.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from unidle.scope.export import names
from unidle.scope.export.wire import Table
from unidle.scope.merge import Interned
from unidle.scope.model import Frame, FrameKind, Profile, Sample

Category = Callable[[Profile, Sample], str]

KINDS: Final[tuple[FrameKind, ...]] = ("python", "native", "kernel", "wait", "device")
WAITING: Final = Frame("wait", names.STATES["runq"])


@dataclass(slots=True)
class Columns:
    """Named columns of whole numbers, kept until they are written one behind the other."""

    made: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def whole(self, name: str, values: Sequence[int]) -> None:
        self.made[name] = ("u4", np.asarray(values, dtype="<u4"))

    def wide(self, name: str, values: Sequence[int]) -> None:
        """Values above 2^32: as doubles, exact up to 2^53 (104 days in nanoseconds)."""
        self.made[name] = ("f8", np.asarray(values, dtype="<f8"))

    def layout(self) -> list[list[object]]:
        return [[name, kind, len(values)] for name, (kind, values) in sorted(self.made.items(), key=_wide_first)]

    def write(self) -> str:
        raw = b"".join(values.tobytes() for _, (_, values) in sorted(self.made.items(), key=_wide_first))
        return deflated(raw)


def _wide_first(column: tuple[str, tuple[str, Any]]) -> tuple[str, str]:
    return column[1][0], column[0]  # "f8" before "u4": doubles have to start at a multiple of 8


def deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def pack(profile: Profile, before: Profile | None, category: Category | None) -> tuple[dict[str, Any], str]:
    """The plain part and the columns. ``before`` is the profile to compare with."""
    sides = [profile] if before is None else [profile, before]
    interned = Interned()
    stacks = [interned.add(side) for side in sides]
    paths = _Paths(interned)
    columns = Columns()
    groups, threads, categories = Table(), Table(), Table()
    rows, held, devices = _Rows(), _Rows(), Table()
    for k, side in enumerate(sides):
        members = _groups(side, groups)
        _take_samples(side, k, stacks[k], paths, members, threads, categories, category, rows)
        _take_memory(side, k, stacks[k], paths, members, devices, held)
    _write_tree(columns, interned, paths, rows, held)
    told = {
        "groups": groups.rows,
        "threads": threads.rows,
        "categories": categories.rows if category else [],
        "devices": devices.rows,
        "functions": _write_frames(columns, interned),
        "kinds": KINDS,
        "columns": columns.layout(),
    }
    return told, columns.write()


class _Rows:
    """Rows of whole numbers of which the first is a path and the last ``wide`` may be above 2^32."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []


class _Paths:
    """Which stacks occur, and which of them occur as those of a thread that waits for a CPU."""

    def __init__(self, interned: Interned) -> None:
        self._interned = interned
        self._stacks = list(interned.stacks)

    def of(self, stack: int, waiting: bool) -> int:
        if not waiting:
            return stack
        frame = self._interned.frames.setdefault(WAITING, len(self._interned.frames))
        return self._interned.stacks.setdefault((*self._stacks[stack], frame), len(self._interned.stacks))


def _groups(side: Profile, groups: Table) -> dict[int, int]:
    """By process number its group: what is the same on both sides. Ranks by number, others by command and order."""
    ranks = names.ranks_of(side)
    commands = {process.pid: names.visible(process.command) for process in side.processes}
    seen: dict[str, int] = {}
    found = {}
    for pid in names.process_labels(side):
        if pid in ranks:
            found[pid] = groups.place(f"rank {ranks[pid]}")
            continue
        command = commands.get(pid, "") or "process"
        seen[command] = seen.get(command, 0) + 1
        nth = f" #{seen[command]}" if seen[command] > 1 else ""
        found[pid] = groups.place(command[: names.LONGEST_COMMAND] + nth)
    return found


def _take_samples(
    side: Profile,
    number: int,
    stacks: list[int],
    paths: _Paths,
    members: dict[int, int],
    threads: Table,
    categories: Table,
    category: Category | None,
    rows: _Rows,
) -> None:
    known = names.threads_of(side)
    places = {
        (pid, tid): threads.place((members[pid], name, tid, pid, number))
        for pid, of_process in known.items()
        for tid, name in of_process.items()
    }
    for (pid, tid, stack, state), (count, ns) in names.totals(side).items():
        kind = 0
        if category:
            kind = categories.place(names.visible(category(side, Sample(pid, tid, stack, state, count, ns))))
        path = paths.of(stacks[stack], state == "runq")
        rows.rows.append((path, places[pid, tid], names.STATE_ORDER.index(state), kind, count, ns))


def _take_memory(
    side: Profile,
    number: int,
    stacks: list[int],
    paths: _Paths,
    members: dict[int, int],
    devices: Table,
    rows: _Rows,
) -> None:
    for h in side.memory:
        device = devices.place(names.visible(h.device))
        rows.rows.append(
            (
                paths.of(stacks[h.stack], False),
                members[h.pid],
                number,
                device,
                h.allocations,
                h.live,
                h.allocated_bytes,
                h.live_bytes,
            )
        )


def _write_tree(columns: Columns, interned: Interned, paths: _Paths, rows: _Rows, held: _Rows) -> None:
    used = {row[0] for row in (*rows.rows, *held.rows)}
    parents, frames, ends = _tree(list(interned.stacks), used)
    columns.whole("above", [n - parent for n, parent in enumerate(parents)])
    columns.whole("frame", frames)
    for prefix, table, small, wide in (
        ("time", rows.rows, ("thread", "state", "category", "count"), ("ns",)),
        ("held", held.rows, ("group", "side", "device", "allocations", "live"), ("allocated_bytes", "live_bytes")),
    ):
        turned = list(zip(*table, strict=True)) or [()] * (1 + len(small) + len(wide))
        columns.whole(f"{prefix}.node", [ends[path] for path in turned[0]])
        for name, values in zip((*small, *wide), turned[1:], strict=True):
            (columns.wide if name in wide or name == "count" else columns.whole)(f"{prefix}.{name}", values)


def _tree(stacks: list[tuple[int, ...]], used: set[int]) -> tuple[list[int], list[int], dict[int, int]]:
    """Parents and frames of the tree's nodes, and the node at which each used stack ends. Node 0 is the root.

    Sorted stacks lie next to those they share their first frames with, so no table of nodes is needed.
    """
    parents, frames, ends = [0], [0], {}
    before: tuple[int, ...] = ()
    path = [0]  # the node of each depth of the stack before
    for number in sorted(used, key=stacks.__getitem__):
        stack = stacks[number]
        shared = 0
        for a, b in zip(before, stack, strict=False):
            if a != b:
                break
            shared += 1
        del path[shared + 1 :]
        for frame in stack[shared:]:
            parents.append(path[-1])
            frames.append(frame)
            path.append(len(parents) - 1)
        ends[number] = path[-1]
        before = stack
    return parents, frames, ends


def _write_frames(columns: Columns, interned: Interned) -> list[object]:
    """The functions (kind, name, file, module), and as columns the function and line of each frame."""
    functions, lines = Table(), []
    numbers = []
    for frame in interned.frames:
        row = (
            KINDS.index(frame.kind),
            names.function_name(frame),
            names.visible(frame.file),
            names.visible(frame.module),
        )
        numbers.append(functions.place(row))
        lines.append(max(0, frame.line))
    columns.whole("function", numbers)
    columns.whole("line", lines)
    return functions.rows


def as_json(told: object) -> str:
    """Deflated JSON. ASCII inside, so half a surrogate pair does no harm."""
    return deflated(json.dumps(told, separators=(",", ":")).encode())
