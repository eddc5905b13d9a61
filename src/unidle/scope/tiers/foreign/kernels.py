"""Kernels, copies and memsets of a CUDA process, as unidle's injected library records them (``native/inject/kernels.c``
has the form). A file is read while it is written: its end may be torn, and all before it counts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from unidle.errors import BadInput
from unidle.scope.tiers.foreign.builder import Builder
from unidle.scope.tiers.foreign.source import Stream, damaged
from unidle.scope.tiers.foreign.timeline import Timeline, device_frame, device_kind

MAGIC: Final = b"UNIDLEK1"
FORM: Final = "unidle's CUPTI library"
HEADER: Final = struct.Struct("<8s4I3QIiQ64x")
FLUSHED: Final = struct.Struct("<Q")
FLUSHED_AT: Final = 56
RECORD: Final = np.dtype(
    [("kind", "<u4"), ("correlation", "<u4"), ("start", "<u8"), ("end", "<u8"), ("device", "<u4"),
     ("context", "<u4"), ("stream", "<u4"), ("way", "<u4"), ("bytes", "<u8"), ("name", "<u8")]
)  # fmt: skip
LIMIT: Final = 4 << 30  # of one file
NAMES, RECORDS, CLOCK, TEXT, LOST = 1, 2, 3, 4, 5
MEMCPY, MEMSET, KERNEL = 1, 2, 3
_WAYS: Final = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}  # CUpti_ActivityMemcpyKind
_LATEST_NS: Final = 2**62
_FRAME: Final = struct.Struct("<II")
_NAME: Final = struct.Struct("<QII")
_TWO: Final = struct.Struct("<QQ")
_OFFSET: Final = struct.Struct("<q")


@dataclass(slots=True)
class CuptiLog:
    """One file. ``rows`` are on the clock of UTC where ``clock`` is true, else on CUPTI's own."""

    name: str
    pid: int
    rank: int | None
    cupti: int
    flushed_ns: int
    clock: bool = False
    rows: list[npt.NDArray[Any]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    lost: int = 0
    incomplete: int = 0
    torn: int = 0  # bytes at the end that are no whole frame
    wrong: int = 0  # records with impossible times


def read_log(stream: Stream, within: tuple[int, int] | None = None) -> Builder:
    """A file by itself. Errors: BadInput where it begins as none of these, or holds nothing but a reason."""
    log = parse(stream.whole(LIMIT), stream.name)
    to = builder_of([log], within)
    if not log.rows:
        raise BadInput(
            log.texts[-1] if log.texts else "holds no kernel yet", field=stream.name, remedy=_remedy(log)
        )
    return to


def _remedy(log: CuptiLog) -> str:
    return "see docs: Profile, kernel times" if log.texts else "look again once the program has used the GPU"


def parse(content: bytes, name: str) -> CuptiLog:
    """What a file holds so far. Errors: BadInput for a header of another form or version."""
    if len(content) < HEADER.size:
        raise damaged(name, f"its header of {HEADER.size} bytes is cut off")
    magic, version, size, pid, cupti, _, _, _, _, rank, flushed_ns = HEADER.unpack_from(content)
    if magic != MAGIC or version != 1 or size != HEADER.size:
        raise BadInput(
            f"is of version {version}, known is 1", field=name, remedy="use the unidle that recorded it"
        )
    log = CuptiLog(name, pid, rank if rank >= 0 else None, cupti, flushed_ns)
    offset, at = 0, HEADER.size
    while at < len(content):
        kind, length = _FRAME.unpack_from(content, at) if at + _FRAME.size <= len(content) else (0, 0)
        if not NAMES <= kind <= LOST or length < _FRAME.size or length % 8 or at + length > len(content):
            log.torn = len(content) - at
            break
        body = memoryview(content)[at + _FRAME.size : at + length]
        if kind == CLOCK and len(body) == _OFFSET.size:
            (offset,) = _OFFSET.unpack(body)
            log.clock = True
        elif kind == RECORDS:
            _take_rows(log, body, offset)
        else:
            _take(log, kind, body)
        at += length
    return log


def _take_rows(log: CuptiLog, body: memoryview, offset: int) -> None:
    rows = np.frombuffer(body[: len(body) - len(body) % RECORD.itemsize], RECORD)
    start, end = rows["start"], rows["end"]
    good = (end >= start) & (end < _LATEST_NS) & (abs(offset) < _LATEST_NS)
    log.wrong += int(len(rows) - good.sum())
    rows = rows[good].copy()
    for column in ("start", "end"):
        rows[column] = (rows[column].astype(np.int64) + offset).clip(0).astype(np.uint64)
    if len(rows):
        log.rows.append(rows)


def _take(log: CuptiLog, kind: int, body: memoryview) -> None:
    if kind == NAMES and len(body) >= _NAME.size:
        number, length, _ = _NAME.unpack_from(body)
        log.names[number] = bytes(body[_NAME.size : _NAME.size + length]).decode(errors="replace")
    elif kind == TEXT and len(body) >= _FRAME.size:
        length, _ = _FRAME.unpack_from(body)
        log.texts.append(bytes(body[_FRAME.size : _FRAME.size + length]).decode(errors="replace"))
    elif kind == LOST and len(body) >= _TWO.size:
        log.lost, log.incomplete = _TWO.unpack_from(body)


def builder_of(logs: Sequence[CuptiLog], within: tuple[int, int] | None = None) -> Builder:
    """All that these files hold, or what lies in ``within`` (UTC, nanoseconds) where they have a clock."""
    to = Builder(FORM, clock=bool(logs) and all(log.clock for log in logs if log.rows))
    timeline = Timeline(logs[0].name if logs else FORM)
    for log in logs:
        if log.rank is not None:
            to.ranks[log.pid] = log.rank
        _add(to, timeline, log, within if to.clock else None)
        to.misses += misses_of(log)
    timeline.fill(to, 0, within if to.clock else None)
    to.misses.append("kernels, copies and memsets on the GPU only: which call launched them is not recorded")
    return to


def misses_of(log: CuptiLog) -> list[str]:
    """What a file lacks, one line each."""
    found = [f"{log.name}: {text}" for text in log.texts]
    if log.lost or log.incomplete:
        found.append(
            f"{log.name}: {log.lost:,} records were dropped by CUPTI, {log.incomplete:,} were not complete"
        )
    if log.wrong:
        found.append(f"{log.name}: {log.wrong:,} records have impossible times")
    if log.torn:
        found.append(f"{log.name}: its last {log.torn:,} bytes are no whole record")
    return found


def _add(to: Builder, timeline: Timeline, log: CuptiLog, within: tuple[int, int] | None) -> None:
    if not log.rows:
        return
    rows = np.concatenate(log.rows)
    if within is not None:
        rows = rows[
            (rows["end"].astype(np.int64) >= within[0]) & (rows["start"].astype(np.int64) <= within[1])
        ]
    shown = dict(zip(log.names, _demangled(list(log.names.values())), strict=True))
    frames: dict[str, tuple[int, str]] = {}
    columns = ("kind", "name", "way", "stream", "device", "start", "end", "bytes")
    for kind, name, way, stream, device, start, end, n_bytes in zip(
        *(rows[column].tolist() for column in columns), strict=True
    ):
        text = _text(kind, way, shown.get(name, "kernel"))
        if text not in frames:
            group = device_kind(text) if kind not in (MEMCPY, MEMSET) else "copy"
            frames[text] = to.stacks.frame(device_frame(text)), group
        frame, group = frames[text]
        # What one process launched twice has one number: no call is known that it could be tied to.
        timeline.add((log.pid, stream, device), frame, group, start, end, n_bytes=min(n_bytes, _LATEST_NS))


def _text(kind: int, way: int, name: str) -> str:
    if kind == MEMCPY:
        return f"Memcpy {_WAYS.get(way, '')}".strip()
    return "Memset" if kind == MEMSET else name


def _demangled(names: list[str]) -> list[str]:
    """By the native part, where it is installed."""
    try:
        import unidle_scope

        return unidle_scope.demangled(names)
    except (ImportError, AttributeError):
        return names
