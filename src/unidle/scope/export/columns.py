"""What the page needs of one or two profiles: a tree of all stacks, and rows of time and memory that point into it.

Columns are little-endian numbers, deflated. The tree is in depth-first order, so a parent stands before its children.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from unidle.page.frame import deflated
from unidle.scope.export import names
from unidle.scope.export.protobuf import RowTable
from unidle.scope.merge import Interned
from unidle.scope.model import Frame, FrameKind, Profile, Sample
from unidle.scope.samples import STATE_ORDER, Column, Rows

Category = Callable[[Profile, Sample], str]
_Numbers = Sequence[int] | Column
_Matrix = npt.NDArray[np.int64]  # a row for each column of a table
_ONE: Final = [1]

KINDS: Final[tuple[FrameKind, ...]] = ("python", "native", "kernel", "wait", "device")
# What a row of time and one of memory hold behind its stack; what may be above 2^32 stands last.
_TIME: Final = ("stack", "thread", "state", "category")
_TIME_WIDE: Final = ("count", "ns")
_HELD: Final = ("stack", "group", "side", "device")
_HELD_WIDE: Final = ("allocations", "live", "allocated_bytes", "live_bytes")
WAITING: Final = Frame("wait", names.STATES["runq"])


@dataclass(slots=True)
class PageColumns:
    """Named columns of whole numbers, kept until they are written one behind the other."""

    made: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def whole(self, name: str, values: _Numbers) -> None:
        self.made[name] = ("u4", np.asarray(values, dtype="<u4"))

    def wide(self, name: str, values: _Numbers) -> None:
        """Values above 2^32: as doubles, exact up to 2^53 (104 days in nanoseconds)."""
        self.made[name] = ("f8", np.asarray(values, dtype="<f8"))

    def layout(self) -> list[list[object]]:
        return [
            [name, kind, len(values)] for name, (kind, values) in sorted(self.made.items(), key=_wide_first)
        ]

    def write(self) -> str:
        raw = b"".join(values.tobytes() for _, (_, values) in sorted(self.made.items(), key=_wide_first))
        return deflated(raw)


def _wide_first(column: tuple[str, tuple[str, Any]]) -> tuple[str, str]:
    return column[1][0], column[0]  # "f8" before "u4": doubles have to start at a multiple of 8


def pack(profile: Profile, before: Profile | None, category: Category | None) -> tuple[dict[str, Any], str]:
    """The plain part and the columns. ``before`` is the profile to compare with."""
    sides = [profile] if before is None else [profile, before]
    interned = Interned()
    stacks = [interned.add(side) for side in sides]
    columns = PageColumns()
    groups, threads, categories = RowTable(), RowTable(), RowTable()
    time, held, devices = [], [], RowTable()
    for k, side in enumerate(sides):
        members = _groups(side, groups)
        rows = names.totals(side)
        kinds = _categories(side, rows, category, categories)
        time.append(
            _time(side, k, rows, np.asarray(stacks[k], np.int64)[rows.stack], kinds, members, threads)
        )
        held.append(_held(side, k, stacks[k], members, devices))
    _write_tree(columns, interned, np.concatenate(time, axis=1), np.concatenate(held, axis=1))
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


def _groups(side: Profile, groups: RowTable) -> dict[int, int]:
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


def _categories(side: Profile, rows: Rows, category: Category | None, categories: RowTable) -> Column:
    """The number of each row's category."""
    if category is None:
        return np.zeros(len(rows), np.int64)
    found = (
        category(side, Sample(pid, tid, stack, STATE_ORDER[state], count, ns))
        for pid, tid, stack, state, count, ns in rows
    )
    return np.fromiter((categories.place(names.visible(name)) for name in found), np.int64, len(rows))


def _time(
    side: Profile, number: int, rows: Rows, paths: Column, kinds: Column, members: dict[int, int], threads: RowTable
) -> _Matrix:  # fmt: skip
    """The columns of ``_TIME`` and ``_TIME_WIDE``."""
    places = {
        (pid, tid): threads.place((members[pid], name, tid, pid, number))
        for pid, of_process in names.threads_of(side).items()
        for tid, name in of_process.items()
    }
    of_threads = zip(rows.pid.tolist(), rows.tid.tolist(), strict=True)
    own = np.fromiter(map(places.__getitem__, of_threads), np.int64, len(rows))
    return np.stack((paths, own, rows.state, kinds, rows.count, rows.ns))


def _held(
    side: Profile, number: int, stacks: list[int], members: dict[int, int], devices: RowTable
) -> _Matrix:
    """The columns of ``_HELD`` and ``_HELD_WIDE``."""
    rows = [
        (stacks[h.stack], members[h.pid], number, devices.place(names.visible(h.device)),
         h.allocations, h.live, h.allocated_bytes, h.live_bytes)
        for h in side.memory
    ]  # fmt: skip
    return np.asarray(rows, np.int64).reshape(-1, len(_HELD) + len(_HELD_WIDE)).T


def _write_tree(columns: PageColumns, interned: Interned, time: _Matrix, held: _Matrix) -> None:
    waits = time[_TIME.index("state")] == STATE_ORDER.index("runq")
    used = np.unique(np.concatenate((time[0], held[0]))).tolist()
    frame = interned.frames.setdefault(WAITING, len(interned.frames)) if waits.any() else 0
    waited = set(time[0][waits].tolist())
    above, frames, ends, waiting = tree(list(interned.stacks), used, waited, frame)
    columns.whole("above", above)
    columns.whole("frame", frames)
    nodes = {"time": np.where(waits, waiting[time[0]], ends[time[0]]), "held": ends[held[0]]}
    for prefix, table, small, wide in (
        ("time", time, _TIME, _TIME_WIDE),
        ("held", held, _HELD, _HELD_WIDE),
    ):
        columns.whole(f"{prefix}.node", nodes[prefix])
        for name, values in zip(small[1:], table[1:], strict=False):
            columns.whole(f"{prefix}.{name}", values)
        for name, values in zip(wide, table[len(small) :], strict=True):
            columns.wide(f"{prefix}.{name}", values)


def tree(
    stacks: list[tuple[int, ...]], used: list[int], waits: Collection[int] = (), frame: int = 0
) -> tuple[Column, Column, Column, Column]:
    """How far above each node its parent stands, each node's frame, by stack the node at which it ends, and the one below it.

    The one below is made for the stacks of ``waits``, with ``frame``: of a thread that waits for a CPU.
    Nodes are in depth-first order, and node 0 is the root. Sorted stacks lie next to those they share their first frames
    with, so no table of nodes is needed: what a stack does not share with the one before it are nodes of its own.
    """
    order = sorted(used, key=stacks.__getitem__)
    ends, waiting = np.zeros((2, len(stacks)), np.int64)
    above, frames = [0], [0]
    path = [0]  # the node of each depth of the stack before
    shared = _shared([stacks[number] for number in order])
    for number, same in zip(order, shared, strict=True):
        stack = stacks[number]
        del path[same + 1 :]
        new = len(stack) - same
        if new:
            first = len(frames)
            above.append(first - path[-1])
            above.extend(_ONE * (new - 1))
            frames.extend(stack[same:])
            path.extend(range(first, first + new))
        ends[number] = path[-1]
        if number in waits:
            waiting[number] = len(frames)
            above.append(len(frames) - path[-1])
            frames.append(frame)
    return np.asarray(above, np.int64), np.asarray(frames, np.int64), ends, waiting


def _shared(stacks: list[tuple[int, ...]]) -> list[int]:
    """How many first frames each stack has in common with the one before it."""
    lengths = np.fromiter(map(len, stacks), np.int64, len(stacks))
    flat = np.fromiter(chain.from_iterable(stacks), np.int64, int(lengths.sum()))
    most = np.minimum(lengths[1:], lengths[:-1])
    starts, ends = np.cumsum(lengths) - lengths, np.cumsum(most)
    # Frame k of each stack stands next to frame k of the one before, as far as both go.
    at = np.arange(int(most.sum())) - np.repeat(ends - most, most)
    differs = np.flatnonzero(
        flat[np.repeat(starts[1:], most) + at] != flat[np.repeat(starts[:-1], most) + at]
    )
    first = np.append(differs, len(at))[np.searchsorted(differs, ends - most)]
    return [0, *(np.minimum(first, ends) - (ends - most)).tolist()][: len(stacks)]


def _write_frames(columns: PageColumns, interned: Interned) -> list[object]:
    """The functions (kind, name, file, module), and as columns the function and line of each frame."""
    functions, lines = RowTable(), []
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
