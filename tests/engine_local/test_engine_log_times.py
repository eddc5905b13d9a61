"""When ranks printed what is in their logs, how much rotation dropped, and reading from there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.engine.local.logs import LogReader
from unidle.engine.local.ranks.supervisor.rotated_log import RotatedLog

S = 1_000_000_000


def rest(reader: LogReader) -> bytes:
    read = b"".join(iter(reader.read, b""))
    reader.close()
    return read


def a_line_each_second(tmp_path: Path, lines: int, file_bytes: int = 1000, files: int = 4) -> RotatedLog:
    """Lines of ten bytes, line ``k`` at ``k`` seconds."""
    log = RotatedLog(str(tmp_path / "log"), file_bytes, files)
    for k in range(lines):
        log.write(b"line %04d\n" % k, k * S)
    log.close()
    return log


@pytest.mark.parametrize("since", [0, 1, 50, 99, 100, 101, 250, 299])
def test_reading_begins_at_a_time_also_in_rotated_files(tmp_path: Path, since: int) -> None:
    a_line_each_second(tmp_path, 300)
    reader = LogReader(str(tmp_path))
    reader.begin(since_ns=since * S)
    first = int(rest(reader).split()[1])
    assert since - 1 <= first <= since  # to a second


def test_nothing_is_read_since_a_time_after_the_last_line(tmp_path: Path) -> None:
    a_line_each_second(tmp_path, 300)
    reader = LogReader(str(tmp_path))
    reader.begin(since_ns=301 * S)
    assert rest(reader) == b""


def test_a_silent_hour_does_not_bring_the_lines_before_it(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), 1000, 4)
    log.write(b"before\n", 10 * S)
    log.write(b"after\n", 3610 * S)
    log.close()
    reader = LogReader(str(tmp_path))
    reader.begin(since_ns=600 * S)
    assert rest(reader) == b"after\n"


def test_dropped_lines_are_counted_by_writer_and_reader(tmp_path: Path) -> None:
    log = a_line_each_second(tmp_path, 1000)
    reader = LogReader(str(tmp_path))
    kept = rest(reader)
    assert kept.endswith(b"line 0999\n")
    assert (log.dropped_lines, reader.lost_lines) == (1000 - kept.count(b"\n"),) * 2
    assert log.dropped_lines >= 600


def test_lines_that_a_slow_reader_missed_are_counted(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), 1000, 2)
    reader = LogReader(str(tmp_path))
    read = b""
    for k in range(1000):
        log.write(b"line %04d\n" % k, k * S)
        if k == 20:
            read = b"".join(iter(reader.read, b""))
    log.close()
    read += rest(reader)
    assert read.count(b"\n") + reader.lost_lines == 1000


@given(
    st.lists(st.sampled_from([b"a\n", b"bb", b"\n", b"ccc\nd", b"x" * 30]), max_size=60),
    st.integers(0, 30),
)
def test_the_last_lines_are_those_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], lines: int
) -> None:
    place = tmp_path_factory.mktemp("log")
    log = RotatedLog(str(place / "log"), 40, 100)
    for part in parts:
        log.write(part, S)
    log.close()
    whole = b"".join(parts).splitlines(keepends=True)
    reader = LogReader(str(place))
    reader.begin(tail=lines)
    assert rest(reader) == b"".join(whole[max(len(whole) - lines, 0) :])


def test_rotation_while_a_reader_looks_doubles_and_loses_no_line(tmp_path: Path) -> None:
    reader, read = LogReader(str(tmp_path)), b""
    log = RotatedLog(str(tmp_path / "log"), 2000, 400)
    over = threading.Event()

    def write() -> None:
        for k in range(20_000):
            log.write(b"line %05d\n" % k, k * S // 1000)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        read += b"".join(iter(reader.read, b""))
    writer.join()
    log.close()
    read += rest(reader)
    assert read == b"".join(b"line %05d\n" % k for k in range(20_000))


def test_a_flood_can_be_passed_over_with_a_count(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), 1000, 4)
    reader = LogReader(str(tmp_path))
    log.write(b"first\n", 0)
    assert reader.read() == b"first\n"
    for k in range(500):
        log.write(b"line %04d\n" % k, S)
    assert reader.unread_bytes() >= 3000
    skipped = reader.skip_to_last(55)
    read = rest(reader)
    log.close()
    assert read == b"".join(b"line %04d\n" % k for k in range(495, 500))
    assert (skipped, reader.lost_lines) == (495, 0)


def test_logs_without_times_are_read_as_before(tmp_path: Path) -> None:
    a_line_each_second(tmp_path, 300)
    (tmp_path / "log.times").unlink()
    reader = LogReader(str(tmp_path))
    assert (len(rest(reader)), reader.time_ns, reader.lost_lines) == (3000, None, 0)
    reader = LogReader(str(tmp_path))
    reader.begin(since_ns=0)  # the files' own times
    assert len(rest(reader)) == 3000


def test_a_torn_line_of_times_costs_nothing(tmp_path: Path) -> None:
    a_line_each_second(tmp_path, 30)
    with (tmp_path / "log.times").open("ab") as file:
        file.write(b"T 2")
    reader = LogReader(str(tmp_path))
    reader.begin(since_ns=20 * S)
    assert rest(reader).endswith(b"line 0029\n")


def test_times_stay_small_in_a_file_that_fills_for_days(tmp_path: Path) -> None:
    log = RotatedLog(str(tmp_path / "log"), 1 << 24, 4)
    for k in range(3 * 86400):
        log.write(b".\n", k * S)
    log.close()
    assert (tmp_path / "log.times").stat().st_size < 1 << 20
