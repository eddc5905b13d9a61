"""Reads a fault trace: a JSON list of starts and ends of faults of servers, such as InfiniteHBD's.

Each row has ``node_id``, ``event_time`` (days since the trace began), ``event_type`` (``fault_start`` or ``fault_end``)
and ``fault_type`` with ``Level``, ``Class`` and ``Desc``. An end belongs to the oldest open fault of its server, first
of those of the same type. A fault without an end lasts until the trace ends, with its last row.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from unidle.files.document import BadFile
from unidle.files.load import read_text, source_name
from unidle.words import counted

LIMIT_BYTES: Final = 256 << 20
MOST_DAYS: Final = 100_000.0
_DAY_NS: Final = 86_400 * 1_000_000_000
_TYPE: Final = ("Level", "Class", "Desc")
_KEYS: Final = ("node_id", "event_time", "event_type", "fault_type")
_EVENTS: Final = ("fault_start", "fault_end")
_NAME_LENGTH: Final = 200


class NodeTrouble(NamedTuple):
    """One fault of one server, in ns since the trace began; ``component`` is its class, ``text`` what it was."""

    start_ns: int
    node: str
    end_ns: int
    level: str
    component: str
    text: str


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """Faults by their start. ``end_ns`` is the time of the last row."""

    source: str
    faults: tuple[NodeTrouble, ...]
    end_ns: int

    @property
    def nodes(self) -> tuple[str, ...]:
        """The servers that are named, sorted: those without a fault are not."""
        return tuple(sorted({fault.node for fault in self.faults}))


class _Row(NamedTuple):
    number: int
    at_ns: int
    node: str
    starts: bool
    kind: tuple[str, str, str]


def load_fault_trace(path: str | os.PathLike[str]) -> FaultTrace:
    """Read a trace. Errors: :class:`unidle.errors.BadInput` that names the row (from 1), field, value and remedy."""
    source = source_name(path)
    text = read_text(path, what="fault trace", limit_bytes=LIMIT_BYTES)
    rows = sorted(_rows(source, text), key=lambda row: row.at_ns)
    return FaultTrace(source, tuple(sorted(_paired(source, rows))), rows[-1].at_ns)


def _rows(source: str, text: str) -> list[_Row]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        at = f"{source}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else source
        problem = f"is not JSON: {getattr(error, 'msg', None) or 'too deep, or a number too long'}"
        raise BadFile(at, problem, remedy="give the trace as one JSON list") from None
    if not isinstance(value, list):
        raise BadFile(source, "must be a list of rows", value=value, remedy="give the trace as one JSON list")
    if not value:
        raise BadFile(source, "the trace is empty", remedy="give rows with a fault_start and its fault_end")
    return [_row(f"{source}, row {k}", k, row) for k, row in enumerate(value, 1)]


def _row(place: str, number: int, row: object) -> _Row:
    fields = _object(place, "row", row, _KEYS)
    kind = _object(place, "fault_type", fields["fault_type"], _TYPE)
    event = fields["event_type"]
    if event not in _EVENTS:
        raise BadFile(
            place, "is no event", field="event_type", value=event, remedy=f"write {' or '.join(_EVENTS)}"
        )
    level, component, text = (_name(place, f"fault_type.{key}", kind[key]) for key in _TYPE)
    at_ns, node = _time(place, fields["event_time"]), _name(place, "node_id", fields["node_id"])
    return _Row(number, at_ns, node, event == _EVENTS[0], (level, component, text))


def _object(place: str, field: str, value: object, keys: tuple[str, ...]) -> Mapping[str, object]:
    names = ", ".join(keys)
    if not isinstance(value, Mapping):
        raise BadFile(place, "must be an object", field=field, value=value, remedy=f"give {names}")
    missing = next((key for key in keys if key not in value), None)
    if missing is not None:
        raise BadFile(place, "is missing", field=missing, remedy=f"give {names}")
    unknown = next((key for key in value if key not in keys), None)
    if unknown is not None:
        raise BadFile(place, "is not known", field=field, value=unknown, remedy=f"give {names} only")
    return value


def _time(place: str, value: object) -> int:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if not fits or not (math.isfinite(value) and 0 <= value <= MOST_DAYS):  # type: ignore[arg-type,operator]
        raise BadFile(
            place, "is not a time", field="event_time", value=value,
            remedy=f"give days since the trace began, 0 to {MOST_DAYS:g}",
        )  # fmt: skip
    return round(float(value) * _DAY_NS)  # type: ignore[arg-type]


def _name(place: str, field: str, value: object) -> str:
    if (
        not isinstance(value, str)
        or not value.strip()
        or not value.isprintable()
        or len(value) > _NAME_LENGTH
    ):
        remedy = f"give 1 to {_NAME_LENGTH} printable characters"
        raise BadFile(place, "is not a name", field=field, value=value, remedy=remedy)
    return value


def _paired(source: str, rows: list[_Row]) -> list[NodeTrouble]:
    open_: dict[str, list[_Row]] = {}
    found = []
    for row in rows:
        mine = open_.setdefault(row.node, [])
        if row.starts:
            mine.append(row)
            continue
        start = next((other for other in mine if other.kind == row.kind), None) or next(iter(mine), None)
        if start is None:
            raise BadFile(
                f"{source}, row {row.number}", "ends a fault that has not begun", field="node_id", value=row.node,
                remedy="give its fault_start, at the same time or before",
            )  # fmt: skip
        mine.remove(start)
        found.append(NodeTrouble(start.at_ns, row.node, row.at_ns, *start.kind))
    last_ns = rows[-1].at_ns
    return found + [
        NodeTrouble(row.at_ns, row.node, last_ns, *row.kind) for mine in open_.values() for row in mine
    ]


def as_servers(trace: FaultTrace, servers: int) -> tuple[str, ...]:
    """All servers of a trace: those that it names, and as many without a fault as there are more.

    Errors: :class:`unidle.errors.BadInput` where it names more than ``servers``.
    """
    named = trace.nodes
    if servers < len(named):
        raise BadFile(
            trace.source, f"names {counted(len(named), 'server')}", field="--servers", value=servers,
            remedy=f"give {len(named)} or more",
        )  # fmt: skip
    rest = (f"without-fault-{k}" for k in range(1, servers - len(named) + 1))
    return (*named, *rest)
