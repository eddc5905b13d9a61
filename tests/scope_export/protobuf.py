"""A reader of protocol buffers by their wire format alone, and Perfetto's trace processor driven through it."""

from __future__ import annotations

import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNNER = Path(__file__).with_name("trace_processor.js")


def varint(told: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = told[at]
        at += 1
        value |= (octet & 127) << shift
        shift += 7
        if octet < 128:
            return value, at


def fields(told: bytes) -> dict[int, list[Any]]:
    """The values by field number: numbers, or bytes for everything with a length."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(told):
        key, at = varint(told, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(told, at)
        elif kind == 2:
            length, at = varint(told, at)
            value, at = told[at : at + length], at + length
            assert len(value) == length, "a field is longer than its message"
        else:
            size = {1: 8, 5: 4}[kind]
            value, at = told[at : at + size], at + size
        found[key >> 3].append(value)
    return found


def packed(told: bytes) -> list[int]:
    found, at = [], 0
    while at < len(told):
        value, at = varint(told, at)
        found.append(value)
    return found


def _framed(field: int, content: bytes) -> bytes:
    def number(value: int) -> bytes:
        out = b""
        while value > 127:
            out, value = out + bytes((value & 127 | 128,)), value >> 7
        return out + bytes((value,))

    return number(field << 3 | 2) + number(len(content)) + content


def _rows(result: bytes) -> Iterator[dict[str, Any]]:
    """Rows of a ``QueryResult``: names (1), error (2), batches (3) of cell kinds and columns by kind."""
    told = fields(result)
    if told[2]:
        raise AssertionError(told[2][0].decode())
    names = [name.decode() for name in told[1]]
    for batch in told[3]:
        parts = fields(batch)
        kinds = b"".join(parts[1])
        whole = iter(packed(b"".join(parts[2])))
        real = struct.iter_unpack("<d", b"".join(parts[3]))
        texts = iter(b"".join(parts[5]).decode().split("\0"))
        read = {
            1: lambda: None,
            2: lambda whole=whole: (v := next(whole)) - (1 << 64 if v >> 63 else 0),
            3: lambda real=real: next(real)[0],
            4: lambda texts=texts: next(texts),
        }
        cells = [read[kind]() for kind in kinds]
        for k in range(0, len(cells), len(names)):
            yield dict(zip(names, cells[k : k + len(names)], strict=True))


def ask_perfetto(build: Path, scratch: Path, trace: bytes, *queries: str) -> list[list[dict[str, Any]]]:
    """Loads a trace into Perfetto's trace processor and gives the rows of each query. Fails where the trace does."""
    calls = [bytes((0x10, 1)) + _framed(101, trace), bytes((0x10, 2))]
    calls += [bytes((0x10, 3)) + _framed(103, _framed(1, query.encode())) for query in queries]
    stream = b"".join(_framed(1, bytes((8, k)) + call) for k, call in enumerate(calls, 1))
    (scratch / "requests").write_bytes(stream)
    ran = subprocess.run(
        ["node", RUNNER, build, scratch / "requests", scratch / "replies"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    answers: dict[int, list[dict[str, Any]]] = defaultdict(list)
    names: dict[int, bytes] = {}
    for reply in fields((scratch / "replies").read_bytes())[1]:
        told = fields(reply)
        assert not told[5], told[5]
        for result in told[201]:
            assert not fields(result)[2], fields(result)[2]
        for result in told[203]:
            # Column names come with the first part of an answer only.
            kind = told[3][0]
            assert kind == 3
            key = len(names) if fields(result)[1] else len(names) - 1
            if fields(result)[1]:
                names[key] = b"".join(_framed(1, name) for name in fields(result)[1])
                answers[key] += _rows(result)
            else:
                answers[key] += _rows(names[key] + result)
    return [answers[k] for k in range(len(queries))]
