"""A kernel log that is read once, for a check."""

import shutil
import stat
import time
from pathlib import Path

import pytest

from unidle.clock import boottime_ns
from unidle.probe.log_reading import read_log

S = 1_000_000_000
FAULT = "kernel: EXT4-fs error (device {}): x: Detected aborted journal"


def syslog(ago_s: float) -> str:
    return time.strftime("%b %e %H:%M:%S", time.localtime(time.time() - ago_s))


def iso(ago_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - ago_s))


def devices(path: Path, age_s: float | None = None, since_s: float | None = None) -> list[str]:
    return [one.device for one in read_log(str(path), age_s, since_s).findings]


def test_a_log_file_counts_from_the_boot_or_from_the_moment_that_is_asked_for(tmp_path: Path):
    up_s = boottime_ns() / S
    path = tmp_path / "kern.log"
    lines = [(iso, up_s + 3600, "sda1"), (syslog, up_s * 0.8, "sdb1"), (iso, up_s * 0.2, "sdc1")]
    path.write_text("".join(f"{form(ago_s)} n1 {FAULT.format(device)}\n" for form, ago_s, device in lines))
    assert devices(path) == ["sdb1", "sdc1"]
    assert devices(path, up_s + 7200) == ["sda1", "sdb1", "sdc1"]
    assert devices(path, since_s=up_s / 2) == ["sdc1"]


def test_a_line_without_a_date_is_left_out_and_counted(tmp_path: Path):
    path = tmp_path / "kern.log"
    path.write_text(f"[  12.5] {FAULT.format('sda1')}\n{iso(0)} n1 {FAULT.format('sdb1')}")
    reading = read_log(str(path))
    assert [one.device for one in reading.findings] == ["sdb1"] and reading.undated == 1


def test_a_day_without_a_year_is_the_last_one(tmp_path: Path):
    path = tmp_path / "kern.log"
    year_s = 365 * 86400
    path.write_text(
        f"Feb 29 12:00:00 n1 {FAULT.format('sda1')}\n{syslog(200 * 86400)} n1 {FAULT.format('sdb1')}\n"
    )
    assert devices(path, 4.2 * year_s) == ["sda1", "sdb1"]
    assert devices(path, 199 * 86400) in ([], ["sda1"])


def test_a_file_that_cannot_be_read_decides_nothing(tmp_path: Path):
    assert "No such file" in (read_log(str(tmp_path / "none")).why_not or "")
    assert "Is a directory" in (read_log(str(tmp_path)).why_not or "")


@pytest.mark.parametrize(("code", "why"), [(0, None), (1, "journalctl: no journal files")])
def test_the_journal_of_this_boot_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, why: str | None
):
    now_us = time.time_ns() // 1000
    record = '{"MESSAGE":"%s","_TRANSPORT":"kernel","SYSLOG_IDENTIFIER":"kernel","__REALTIME_TIMESTAMP":"%d"}'
    told = [
        record % (FAULT.format(device).removeprefix("kernel: "), now_us - ago_s * 1_000_000)
        for device, ago_s in (("sda1", 900), ("sdb1", 30))
    ]
    tool = tmp_path / "journalctl"
    out = "\n".join(told) if not code else ""
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{out}\nEND\necho no journal files >&2\nexit {code}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert shutil.which("journalctl") == str(tool)
    reading = read_log("journal")
    assert reading.why_not == why
    assert [one.device for one in reading.findings] == ([] if code else ["sda1", "sdb1"])
    assert [one.device for one in read_log("journal", 60).findings] == ([] if code else ["sdb1"])
