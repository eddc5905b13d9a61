"""OpenTelemetry profiles (OTLP), experimental: the signal is in development and its form has changed between releases.

Written for opentelemetry-proto v1.10.0, ``opentelemetry.proto.profiles.v1development`` (message ``ProfilesData``); the
release before numbered the fields of ``Sample`` differently, so an older collector reads nothing of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import unidle
from unidle.scope.export import names
from unidle.scope.export.encode import uncollected
from unidle.scope.export.protobuf import (
    RowTable,
    Strings,
    message,
    number,
    number_always,
    packed,
    text,
    varint,
    varints,
)
from unidle.scope.model import Frame, Profile
from unidle.scope.samples import STATE_ORDER

PROTO: Final = "opentelemetry-proto v1.10.0, profiles v1development"

_FRAME_TYPES: Final = {"python": "cpython", "native": "native", "kernel": "kernel"}
_TIME: Final = {"on": "cpu", "off": "off_cpu", "runq": "cpu_wait"}
_MEMORY: Final = (("alloc_space", "allocated_bytes"), ("inuse_space", "live_bytes"))


class _Dictionary:
    """The tables that all profiles of a file share. Number 0 of each is the empty row, as the format requires."""

    def __init__(self, profile: Profile) -> None:
        self.strings, self.attributes = Strings(), RowTable()
        self._mappings, self._functions, self._locations, self._stacks = (
            RowTable(),
            RowTable(),
            RowTable(),
            RowTable(),
        )
        for table in (self.attributes, self._mappings, self._functions, self._locations, self._stacks):
            table.place(b"")
        numbers = [varint(self._location(frame)) for frame in profile.frames]
        paths = (b"".join([numbers[n] for n in reversed(stack)]) for stack in profile.stacks)
        self.stacks = [self._stacks.place(message(1, path) if path else b"") for path in paths]

    def _location(self, frame: Frame) -> int:
        module = names.visible(frame.module) or ("[kernel]" if frame.kind == "kernel" else "")
        mapping = self._mappings.place(number(4, self.strings.place(module))) if module else 0
        name, file = self.strings.place(names.function_name(frame)), names.visible(frame.file)
        function = self._functions.place(number(1, name) + number(3, self.strings.place(file)))
        kind = self.text("profile.frame.type", _FRAME_TYPES.get(frame.kind, frame.kind))
        line = message(3, number(1, function) + number(2, frame.line))
        return self._locations.place(number(1, mapping) + line + packed(4, [kind]))

    def text(self, key: str, value: str) -> int:
        return self._attribute(key, message(1, value.encode("utf-8", "backslashreplace")))

    def whole(self, key: str, value: int) -> int:
        return self._attribute(key, number_always(3, value))

    def _attribute(self, key: str, value: bytes) -> int:
        return self.attributes.place(number(1, self.strings.place(key)) + message(2, value))

    def write(self) -> bytes:
        tables = ((1, self._mappings), (2, self._locations), (3, self._functions))
        rows: list[Any] = [message(field, row) for field, table in tables for row in _rows(table)]
        rows += [message(4, b""), self.strings.write(5)]
        rows += [
            message(field, row)
            for field, table in ((6, self.attributes), (7, self._stacks))
            for row in _rows(table)
        ]
        return b"".join(rows)


def _rows(table: RowTable) -> list[Any]:
    return table.rows


@uncollected
def write(profile: Profile) -> bytes:
    """The profile as one ``ProfilesData``: a resource per process, in it one profile per kind of time or memory.

    The scope's attributes (``unidle.…``) carry the quality.
    """
    dictionary = _Dictionary(profile)
    scope = _scope(profile)
    resources = [
        message(1, _resource(profile, pid) + message(2, scope + b"".join(profiles)))
        for pid, profiles in _profiles(profile, dictionary)
    ]
    return b"".join((*resources, message(2, dictionary.write())))


def _key_value(key: str, value: str) -> bytes:
    return text(1, key) + message(2, message(1, value.encode("utf-8", "backslashreplace")))


def _scope(profile: Profile) -> bytes:
    facts = {f"unidle.{name.replace(' ', '_')}": value for name, value in names.quality(profile).items()}
    facts["unidle.experimental"] = PROTO
    attributes = b"".join(message(3, _key_value(key, value)) for key, value in facts.items())
    return message(1, text(1, "unidle.scope") + text(2, unidle.__version__) + attributes)


def _resource(profile: Profile, pid: int) -> bytes:
    told = [text(1, "process.pid") + message(2, number_always(3, pid))]
    for process in profile.processes:
        if process.pid != pid:
            continue
        told.append(_key_value("process.command_line", names.visible(process.command)))
        if process.rank is not None:
            told.append(text(1, "unidle.rank") + message(2, number_always(3, process.rank)))
        if process.job:
            told.append(_key_value("unidle.job", names.visible(process.job)))
        if process.python:
            told.append(_key_value("process.runtime.name", "cpython"))
            told.append(_key_value("process.runtime.version", names.visible(process.python)))
    return message(1, b"".join(message(1, row) for row in told))


def _profiles(profile: Profile, dictionary: _Dictionary) -> Iterator[tuple[int, list[bytes]]]:
    threads = names.threads_of(profile)
    rows: dict[int, dict[tuple[str, str], list[bytes]]] = {pid: {} for pid in names.process_labels(profile)}
    attributes = {
        (pid, tid): [dictionary.whole("thread.id", tid), dictionary.text("thread.name", name)]
        for pid, of_process in threads.items()
        for tid, name in of_process.items()
    }
    totals = names.totals(profile)
    stacks = [number(1, stack) for stack in dictionary.stacks]
    told = {thread: packed(2, numbers) for thread, numbers in attributes.items()}
    kinds = [(_TIME[state], "nanoseconds") for state in STATE_ORDER]
    for (pid, tid, stack, state, _, _), ns in zip(totals, varints(totals.ns), strict=True):
        sample = message(2, stacks[stack] + told[pid, tid] + message(4, ns))
        rows[pid].setdefault(kinds[state], []).append(sample)
    for held in profile.memory:
        device = [dictionary.text("unidle.device", names.visible(held.device))]
        for kind, field in _MEMORY:
            sample = _sample(dictionary.stacks[held.stack], device, getattr(held, field))
            rows[held.pid].setdefault((kind, "bytes"), []).append(sample)
    for pid, of_process in rows.items():
        yield pid, [_profile(profile, dictionary, pid, *kind, found) for kind, found in of_process.items()]


def _sample(stack: int, attributes: list[int], value: int) -> bytes:
    return message(2, number(1, stack) + packed(2, attributes) + packed(4, [value]))


def _profile(
    profile: Profile, dictionary: _Dictionary, pid: int, kind: str, unit: str, samples: list[bytes]
) -> bytes:
    strings = dictionary.strings
    sort = number(1, strings.place(kind)) + number(2, strings.place(unit))
    content = b"".join(samples)
    told = [message(1, sort), content, _fixed64(3, profile.wall_start_ns)]
    told.append(number(4, profile.end_ns - profile.start_ns))
    if unit == "nanoseconds" and profile.hz > 0:
        told += [message(5, sort), number(6, round(1e9 / profile.hz))]
    identity = hashlib.sha256(f"{pid} {kind} {profile.wall_start_ns} {profile.start_ns}".encode() + content)
    told.append(message(7, identity.digest()[:16]))
    return message(2, b"".join(told))


def _fixed64(field: int, value: int) -> bytes:
    return bytes((field << 3 | 1,)) + value.to_bytes(8, "little") if value > 0 else b""
