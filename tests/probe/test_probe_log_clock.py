"""Ages of kernel log lines, whose stamps are of a clock that no time server adjusts."""

from __future__ import annotations

from pathlib import Path

import needs
from unidle.probe.kernel_log import KernelLog, since_ns, stamp_now_ns

S = 1_000_000_000
DAY = 86_400 * S


def never() -> int:
    raise AssertionError("the log's clock was read")


def test_a_line_near_the_limit_is_compared_by_the_clock_of_the_log() -> None:
    now, behind = 30 * DAY, 40 * S  # the log's clock lost 40 s in 30 days
    limit = since_ns(lambda: 10 * S, [now - 45 * S], now, lambda: now - behind)
    assert limit == now - 50 * S  # so the line is 5 s old, and counts
    ahead = since_ns(lambda: 10 * S, [now - 5 * S], now, lambda: now + 40 * S)
    assert ahead == now + 30 * S  # and this one is 45 s old, and does not


def test_the_clock_of_the_log_is_not_read_if_it_cannot_matter() -> None:
    now = 30 * DAY
    assert since_ns(lambda: 10 * S, [], now, never) == now - 10 * S
    assert since_ns(lambda: 10 * S, [now - 2 * DAY, now - 3 * DAY], now, never) == now - 10 * S


@needs.root
def test_the_clock_of_the_log_is_read_from_the_log() -> None:
    log = KernelLog()
    before, after = stamp_now_ns(), stamp_now_ns()
    lines = [line.data.decode() for line in log.poll() if b"unidle: reads the clock of this log" in line.data]
    log.close()
    stamps = [int(line.split(",")[2]) * 1000 for line in lines]
    assert before in stamps and after in stamps and before <= after


def test_without_permission_the_machines_clock_is_used(tmp_path: Path) -> None:
    assert stamp_now_ns(str(tmp_path / "absent")) > 0
    plain = tmp_path / "kmsg"
    plain.touch()
    assert stamp_now_ns(str(plain)) > 0
    assert b"unidle" in plain.read_bytes()
