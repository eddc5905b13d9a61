"""pprof's gzipped protocol buffer, for ``go tool pprof`` and all that reads its files.

Source: profile.proto of google/pprof (message Profile; field numbers below).
"""

from __future__ import annotations

import gzip
from typing import Any, Final

from unidle.scope.export import names
from unidle.scope.export.encode import uncollected
from unidle.scope.export.protobuf import RowTable, Strings, message, number, packed, varint, varints
from unidle.scope.model import Frame, Profile
from unidle.scope.samples import STATE_ORDER

_TIME: Final = (
    ("samples", "count"),
    ("cpu", "nanoseconds"),
    ("off-cpu", "nanoseconds"),
    ("cpu-wait", "nanoseconds"),
)
_MEMORY: Final = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)
_COLUMN: Final = {"on": 1, "off": 2, "runq": 3}


def write(profile: Profile) -> bytes:
    """The profile, compressed, with columns for memory if memory was profiled.

    Labels: ``thread``, ``tid``, ``pid``, ``process``, ``rank``, ``state``, ``device``; ``rank`` is a text, as pprof takes a
    bare number for a range. Comments carry the quality.
    """
    return gzip.compress(plain(profile), compresslevel=6, mtime=0)


@uncollected
def plain(profile: Profile) -> bytes:
    """The same before compression: one ``perftools.profiles.Profile``."""
    strings = Strings()
    types = _TIME + (_MEMORY if profile.memory else ())
    parts = [message(1, _value_type(strings, *kind)) for kind in types]
    stacks, tables = _places(profile, strings)
    parts += _samples(profile, strings, stacks, len(types))
    parts += tables
    comments = [strings.place(f"{name}: {value}") for name, value in names.quality(profile).items()]
    tail = b"".join(
        (
            number(9, profile.wall_start_ns),
            number(10, profile.end_ns - profile.start_ns),
            message(11, _value_type(strings, "cpu", "nanoseconds")),
            number(12, round(1e9 / profile.hz) if profile.hz > 0 else 0),
            packed(13, comments),
            number(14, strings.place("cpu")),
        )
    )
    return b"".join((*parts, strings.write(6), tail))


def _value_type(strings: Strings, kind: str, unit: str) -> bytes:
    return number(1, strings.place(kind)) + number(2, strings.place(unit))


def _module(frame: Frame) -> str:
    if frame.kind == "kernel":
        return "[kernel.kallsyms]"
    if frame.kind == "wait":
        return "[wait]"
    return names.visible(frame.module) or ("[python]" if frame.kind == "python" else "[unknown]")


def _places(profile: Profile, strings: Strings) -> tuple[list[bytes], list[bytes]]:
    """Each stack as its packed location numbers, leaf first, and the tables of mappings, locations and functions."""
    mappings, functions, locations = RowTable(1), RowTable(1), RowTable(1)
    numbers = []
    for frame in profile.frames:
        mapping = mappings.place(strings.place(_module(frame)))
        name = strings.place(names.function_name(frame))
        function = functions.place((name, strings.place(names.visible(frame.file))))
        numbers.append(locations.place((mapping, function, frame.line)))
    encoded = [varint(n) for n in numbers]
    paths = (b"".join([encoded[n] for n in reversed(stack)]) for stack in profile.stacks)
    stacks = [message(1, path) if path else b"" for path in paths]
    # Flags 7 to 10: functions, file names, lines and inlines are known, so that no reader looks for the program.
    flags = b"".join(number(field, 1) for field in (7, 8, 9, 10))
    tables = [message(3, number(1, n) + number(5, row) + flags) for n, row in _numbered(mappings)]
    for n, (mapping, function, line) in _numbered(locations):
        lines = number(1, function) + number(2, line)
        tables.append(message(4, number(1, n) + number(2, mapping) + message(4, lines)))
    # No system name: pprof would take ours for a mangled one, and cut `<module>` and arguments off.
    tables += [
        message(5, number(1, n) + number(2, name) + number(4, file))
        for n, (name, file) in _numbered(functions)
    ]
    return stacks, tables


def _numbered(table: RowTable) -> Any:
    return enumerate(table.rows, 1)


def _samples(profile: Profile, strings: Strings, stacks: list[bytes], columns: int) -> list[bytes]:
    processes = _process_labels(profile, strings)
    states = [_text(strings, "state", names.STATES[state]) for state in STATE_ORDER]
    threads = {
        (pid, tid): [
            processes[pid] + _text(strings, "thread", names.thread_label(tid, name)) + _number(strings, "tid", tid) + state
            for state in states
        ]
        for pid, of_process in names.threads_of(profile).items()
        for tid, name in of_process.items()
    }  # fmt: skip
    zeros = [(bytes(_COLUMN[state] - 1), bytes(columns - 1 - _COLUMN[state])) for state in STATE_ORDER]
    rows, totals = [], names.totals(profile)
    amounts = zip(varints(totals.count), varints(totals.ns), strict=True)
    for (pid, tid, stack, state, _, _), (count, ns) in zip(totals, amounts, strict=True):
        before, after = zeros[state]
        amount = message(2, count + before + ns + after)
        rows.append(message(2, stacks[stack] + amount + threads[pid, tid][state]))
    for held in profile.memory:
        values = [*(0 for _ in _TIME), held.allocations, held.allocated_bytes, held.live, held.live_bytes]
        device = _text(strings, "device", names.visible(held.device))
        rows.append(message(2, stacks[held.stack] + packed(2, values) + processes[held.pid] + device))
    return rows


def _process_labels(profile: Profile, strings: Strings) -> dict[int, bytes]:
    ranks = names.ranks_of(profile)
    return {
        pid: _text(strings, "process", name)
        + _number(strings, "pid", pid)
        + (_text(strings, "rank", f"rank {ranks[pid]}") if pid in ranks else b"")
        for pid, name in names.process_labels(profile).items()
    }


def _text(strings: Strings, key: str, value: str) -> bytes:
    return message(3, number(1, strings.place(key)) + number(2, strings.place(value)))


def _number(strings: Strings, key: str, value: int) -> bytes:
    return message(3, number(1, strings.place(key)) + number(3, value))
