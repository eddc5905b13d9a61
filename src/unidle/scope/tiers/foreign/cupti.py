"""CUPTI activity records in SQLite, as ``nsys export --type sqlite`` (and nvprof before it) writes them.

Times are in nanoseconds since the session's start, which ``TARGET_INFO_SESSION_START_TIME.utcEpochNs`` gives.
A global thread number holds pid and tid in its lowest 48 bits (Nsight Systems, SQLite schema reference).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from unidle.errors import BadInput
from unidle.scope.model import Frame
from unidle.scope.tiers.foreign.builder import Builder
from unidle.scope.tiers.foreign.source import damaged
from unidle.scope.tiers.foreign.timeline import Timeline, call_kind, device_frame, device_kind

MAGIC: Final = b"SQLite format 3\0"
_KERNELS: Final = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")
_APIS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_COPIES: Final = {"CUPTI_ACTIVITY_KIND_MEMCPY": "copyKind", "CUPTI_ACTIVITY_KIND_MEMSET": ""}
_DIRECTIONS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}  # CUpti_ActivityMemcpyKind


def read_sqlite(path: str | os.PathLike[str], within: tuple[int, int] | None = None) -> Builder:
    """Raises :class:`BadInput` for a database that is damaged or holds no CUPTI activity."""
    _check_size(Path(path))
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            db.text_factory = lambda raw: raw.decode(errors="replace")
            return _Reader(db, str(path)).read(within)
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise damaged(str(path), f"as a database: {error}") from None


def _check_size(path: Path) -> None:
    """SQLite reads the pages that are there of a file that was cut off, and so must be asked for the others."""
    with path.open("rb") as file:
        head = file.read(100).ljust(100, b"\0")
    page = int.from_bytes(head[16:18], "big")
    wanted = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if head[24:28] == head[92:96] and path.stat().st_size < wanted:
        raise damaged(str(path), f"has {path.stat().st_size:,} bytes of {wanted:,}")


class _Reader:
    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self.db, self.name = db, name
        self.to = Builder("CUPTI activity records (SQLite)")
        self.timeline = Timeline(name)
        tables = db.execute("select name from sqlite_master where type in ('table', 'view')")
        self.tables = {str(name) for (name,) in tables}
        self.pids: set[int] = set()

    def read(self, within: tuple[int, int] | None) -> Builder:
        self.strings = self._strings()
        found = [table for table in (*_KERNELS, *_APIS, *_COPIES) if table in self.tables]
        if not found:
            raise BadInput(
                "is a database without CUPTI activity",
                field=self.name,
                remedy="trace with nsys profile --trace=cuda, then nsys export --type sqlite",
            )
        for table in _APIS:
            self._apis(table)
        for table in _KERNELS:
            self._kernels(table)
        for table, direction in _COPIES.items():
            self._copies(table, direction)
        if not self.timeline.start:
            raise BadInput("its tables of CUPTI activity are empty", field=self.name)
        base = self._base()
        self.to.clock = base is not None
        self.timeline.fill(self.to, base or 0, within if base is not None else None)
        self.to.misses += [
            "only CUDA calls and what they launched: no Python, no other native code, no off-CPU time",
            "wall time of calls, whether they ran or waited",
        ]
        return self.to

    def _strings(self) -> dict[int, str]:
        for table, key in (("StringIds", "id"), ("StringTable", "_id_")):
            if table in self.tables:
                return {int(n): str(text) for n, text in self.db.execute(f"select {key}, value from {table}")}  # noqa: S608
        return {}

    def _base(self) -> int | None:
        table = "TARGET_INFO_SESSION_START_TIME"
        if table not in self.tables or not self._has(table, "utcEpochNs"):
            return None
        row = self.db.execute(f"select utcEpochNs from {table}").fetchone()  # noqa: S608
        return int(row[0]) if row and row[0] and 0 < int(row[0]) < 2**62 else None

    def _has(self, table: str, column: str) -> bool:
        return any(row[1] == column for row in self.db.execute(f"pragma table_info({table})"))

    def _rows(self, table: str, *wanted: str) -> Iterator[tuple[int | str | None, ...]]:
        """The given columns of all rows; None for a column that this version of the form does not have."""
        if table not in self.tables:
            return
        parts = ", ".join(f'"{name}"' if self._has(table, name) else "null" for name in wanted)
        yield from self.db.execute(f"select {parts} from {table}")  # noqa: S608

    def _text(self, told: int | str | None, other: str) -> str:
        if isinstance(told, str) and told:
            return told
        return self.strings.get(int(told), other) if told is not None else other

    def _apis(self, table: str) -> None:
        columns = ("start", "end", "globalTid", "processId", "threadId", "correlationId", "nameId", "cbid")
        for start, end, both, process, thread, link, name, cbid in self._rows(table, *columns):
            pid, tid = _ids(both) if both is not None else (_int(process), _int(thread))
            self.pids.add(pid)
            text = self._text(name, f"{table.rsplit('_', 1)[1].lower()} call {_int(cbid)}")
            # The names of calls carry the version of their interface: cudaLaunchKernel_v7000.
            text = text.partition("_v")[0] if text.rpartition("_v")[2].isdigit() else text
            frame = self.to.stacks.frame(Frame("native", text, module="CUDA"))
            lane = (pid, tid, None)
            self.timeline.add(lane, frame, call_kind(text), _int(start), _int(end), link=_link(link))

    def _process(self, both: int | str | None) -> int:
        if both is not None:
            return _ids(both)[0]
        return next(iter(self.pids)) if len(self.pids) == 1 else 0

    def _kernels(self, table: str) -> None:
        columns = (
            "start", "end", "globalPid", "deviceId", "streamId", "correlationId", "demangledName", "shortName", "name",
        )  # fmt: skip
        for start, end, both, device, stream, link, long, short, name in self._rows(table, *columns):
            told = next((one for one in (long, short, name) if one is not None), None)
            text = self._text(told, "kernel")
            frame = self.to.stacks.frame(device_frame(text))
            lane = (self._process(both), _int(stream), _int(device))
            self.timeline.add(lane, frame, device_kind(text), _int(start), _int(end), link=_link(link))

    def _copies(self, table: str, direction: str) -> None:
        columns = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "bytes", "value")
        wanted = (*columns, direction or "value")
        for start, end, both, device, stream, link, n_bytes, value, way in self._rows(table, *wanted):
            size = n_bytes if n_bytes is not None else value
            text = f"Memcpy {_DIRECTIONS.get(_int(way), '')}".strip() if direction else "Memset"
            frame = self.to.stacks.frame(device_frame(text))
            lane = (self._process(both), _int(stream), _int(device))
            self.timeline.add(
                lane, frame, "copy", _int(start), _int(end), link=_link(link), n_bytes=max(0, _int(size))
            )


def _int(told: int | str | None) -> int:
    return int(told) if told is not None else 0


def _link(told: int | str | None) -> int:
    return int(told) if told else -1


def _ids(told: int | str) -> tuple[int, int]:
    both = int(told)
    return both >> 24 & 0xFFFFFF, both & 0xFFFFFF
