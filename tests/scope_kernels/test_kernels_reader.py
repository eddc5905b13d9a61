"""The reader of kernel records: whatever a file holds, it gives what is whole, or one error."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.scope.call_counts import counts_of
from unidle.scope.tiers.foreign import kernels
from unidle.scope.tiers.foreign.kernels import CLOCK, HEADER, LOST, MAGIC, NAMES, RECORD, RECORDS, TEXT, parse
from unidle.scope.tiers.imported import read

OFFSET_NS = 1_790_857_026_000_000_000


def header(pid: int = 77, rank: int = -1, version: int = 1) -> bytes:
    return HEADER.pack(MAGIC, version, HEADER.size, pid, 26, 5, 6, 7, 0, rank, 0)


def frame(kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 8)
    return struct.pack("<II", kind, 8 + len(body)) + body


def name(number: int, text: str) -> bytes:
    return frame(NAMES, struct.pack("<QII", number, len(text.encode()), 0) + text.encode())


def records(*rows: tuple[int, int, int, int]) -> bytes:
    """Kernels: start, end, stream, name."""
    told = np.zeros(len(rows), RECORD)
    for n, (start, end, stream, number) in enumerate(rows):
        told[n] = (kernels.KERNEL, n, start, end, 0, 1, stream, 0, 0, number)
    return frame(RECORDS, told.tobytes())


def clock(offset: int = OFFSET_NS) -> bytes:
    return frame(CLOCK, struct.pack("<q", offset))


WHOLE = (
    header()
    + clock()
    + name(1, "gemm")
    + records((10, 20, 7, 1), (30, 35, 7, 1))
    + frame(LOST, struct.pack("<QQ", 4, 2))
)


def test_a_file_cut_off_anywhere_gives_its_whole_frames() -> None:
    counts = []
    for end in range(HEADER.size, len(WHOLE) + 1):
        log = parse(WHOLE[:end], "file")
        counts.append(sum(map(len, log.rows)))
        assert (log.torn == 0) == (end in {128, 144, 176, 296, 320})
    assert counts == sorted(counts)
    assert counts[-1] == 2
    for end in range(HEADER.size):
        with pytest.raises(BadInput):
            parse(WHOLE[:end], "file")


def test_what_was_lost_and_torn_is_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(WHOLE + b"\1\0\0")
    profile = read(path)
    assert "file: 4 records were dropped by CUPTI, 2 were not complete" in [miss.rpartition("/")[2] for miss in profile.misses]  # fmt: skip
    assert any(miss.endswith("its last 3 bytes are no whole record") for miss in profile.misses)
    assert (profile.wall_start_ns, profile.end_ns) == (OFFSET_NS + 10, OFFSET_NS + 35)
    found = {(call.name, call.count, call.ns) for call in profile.calls}
    assert found == {
        ("gemm", 2, 15),
        ("cuda:0", 1, 15),
        ("no recorded call", 1, 10),
    }  # what ran, its device, and its wait


def test_records_with_impossible_times_are_counted_and_left_out() -> None:
    log = parse(header() + clock() + records((10, 20, 7, 1), (30, 5, 7, 1), (2**63, 2**63 + 1, 7, 1)), "file")
    assert (sum(map(len, log.rows)), log.wrong) == (1, 2)


def test_another_version_is_refused_in_one_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(header(version=2))
    with pytest.raises(BadInput, match="is of version 2, known is 1"):
        read(path)


def test_times_without_a_clock_are_not_placed_in_utc(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(header() + records((10, 20, 7, 0)))
    assert read(path).wall_start_ns == 0


frames = st.one_of(
    st.builds(frame, st.integers(0, 7), st.binary(max_size=200)),
    st.builds(name, st.integers(0, 3), st.text(max_size=20)),
    st.builds(clock, st.integers(-(2**63), 2**63 - 1)),
    st.builds(
        lambda rows: records(*rows),
        st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2, st.integers(0, 2**32 - 1), st.integers(0, 4)), max_size=5),
    ),
    st.builds(lambda n, text: frame(TEXT, struct.pack("<II", n, 1) + text), st.integers(0, 2**32 - 1), st.binary(max_size=30)),
    st.binary(max_size=40),
)  # fmt: skip


@given(st.lists(frames, max_size=8), st.integers(0, 400))
def test_any_bytes_give_records_with_possible_times_or_one_error(parts: list[bytes], cut: int) -> None:
    content = header() + b"".join(parts)
    log = parse(content[: max(HEADER.size, len(content) - cut)], "file")
    assert 0 <= log.torn <= len(content)
    assert all((rows["end"] >= rows["start"]).all() for rows in log.rows)
    profile = kernels.builder_of([log], (0, 2**62)).profile()
    assert sum(call.count for call in counts_of(profile)) <= sum(map(len, log.rows))
    assert all(call.ns is not None and call.ns >= 0 for call in profile.calls)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_counts_and_times_are_those_of_the_records(rows: list[tuple[int, int, int, int]]) -> None:
    names = b"".join(name(n, f"k{n}") for n in (1, 2, 3))
    log = parse(
        header()
        + clock()
        + names
        + records(*((start, start + ns, stream, n) for start, ns, stream, n in rows)),
        "file",
    )
    profile = kernels.builder_of([log]).profile()
    for n in (1, 2, 3):
        mine = [call for call in profile.calls if call.name == f"k{n}"]
        assert sum(call.count for call in mine) == sum(row[3] == n for row in rows)
        assert sum(call.ns or 0 for call in mine) == sum(row[1] for row in rows if row[3] == n)
