"""A node's log, read live: which device a line speaks of, when it happened, and each event once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import needs
from unidle.fleet import Device, Node
from unidle.fleet.policies import WatchSources
from unidle.probe.detector import Detection
from unidle.probe.device_names import DeviceNames
from unidle.probe.kernel_log import KernelLog
from unidle.probe.log_watch import MOST_LINES, LogWatch

S = 1_000_000_000
NOW_NS = 1_795_000_000 * S
XID_79 = "[  219.471050] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = (
    "[  300.1] NVRM: Xid (PCI:0000:5e:00): 31, pid={pid}, name=python, Ch 00000030, intr 00000000. MMU Fault"
)


def node(pci: tuple[str, ...] = ("00000000:3B:00.0", "0000:5e:00.0")) -> Node:
    devices = tuple(Device(f"n1/{k}", "n1", k, "gpu", "H100") for k in range(2))
    return Node("n1", "site", devices, watch=WatchSources(pci=pci))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text("an old line\n")
    return path


def watch(log: Path | str, kept: str = "", offset_ns: int = 0) -> LogWatch:
    return LogWatch("n1", str(log), DeviceNames(node()), kept, offset_ns)


def append(log: Path, *lines: str) -> None:
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def look(one: LogWatch, now_ns: int = NOW_NS) -> list[Detection]:
    return one.look(now_ns)


def test_a_line_is_laid_on_the_device_that_the_fleet_calls_by_another_name(log: Path) -> None:
    one = watch(log)
    append(log, XID_79, XID_79.replace("3b", "99").replace("219", "221"))
    first, second = look(one)
    assert (first.device, first.finding.code, first.finding.device) == ("n1/0", 79, "0000:3b:00.0")
    assert second.device == "", "no declared device has this address: it concerns the node"
    assert "fallen off the bus" in first.text


def test_a_boot_that_is_told_again_is_no_second_fault(log: Path) -> None:
    one = watch(log)
    append(log, "[    0.000000] Linux version 6.1", XID_79)
    assert len(look(one)) == 1
    append(log, "[    0.000000] Linux version 6.1", XID_79, XID_79.replace("219.471050", "990.000001"))
    assert [h.finding.stamp_ns for h in look(one)] == [990_000_001_000]


def test_after_a_restart_old_lines_are_not_told_and_those_in_between_are(log: Path) -> None:
    one = watch(log)
    append(log, XID_79)
    assert len(look(one)) == 1
    kept = one.keep()
    one.close()
    append(log, XID_79.replace("3b", "5e").replace("219", "300"))
    again = watch(log, kept)
    assert [h.device for h in look(again)] == ["n1/1"]


def test_a_file_that_is_written_anew_is_not_told_again(log: Path) -> None:
    one = watch(log)
    append(log, XID_79)
    assert len(look(one)) == 1
    log.write_text(f"{XID_79}\n[  400.000001] NVRM: Xid (PCI:0000:5e:00): 48, pid=1, DBE\n")
    assert [h.finding.code for h in look(one)] == [48]


def test_rotation_loses_no_fault(log: Path) -> None:
    one = watch(log)
    append(log, XID_79)
    log.rename(log.with_suffix(".1"))
    log.write_text(XID_79.replace("3b", "5e").replace("219", "220") + "\n")
    assert [h.device for h in look(one)] == ["n1/0", "n1/1"]


@pytest.mark.parametrize(
    ("stamp", "onset_ns"),
    [
        ("2026-11-18T11:06:30+00:00 host kernel: ", NOW_NS - 10 * S),
        ("2026-11-18T12:06:40+00:00 host kernel: ", NOW_NS),
        ("2019-01-01T00:00:00+00:00 host kernel: ", NOW_NS),
        ("[  100.0] ", NOW_NS),
    ],
    ids=["ten seconds ago", "in the future", "years ago", "of a machine whose boot is not known"],
)
def test_the_onset_is_what_the_line_says_where_that_can_be(log: Path, stamp: str, onset_ns: int) -> None:
    one = watch(log)
    append(log, stamp + XID_79.partition("] ")[2])
    [heard] = look(one)
    assert (heard.onset_ns, heard.signal_ns) == (onset_ns, NOW_NS)


def test_the_process_that_a_line_names_is_told_with_those_above_it(log: Path) -> None:
    one = watch(log)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        append(log, XID_31.format(pid=child.pid))
        [heard] = look(one)
        child.kill()
    assert heard.pids[:2] == (child.pid, os.getpid())


def test_a_flood_is_bounded_counted_and_told_once(log: Path) -> None:
    one = watch(log)
    told, used_s = 0, 0.0
    for part in range(4):  # 25,000 lines at each look: 100,000 a second
        append(log, *(
            f"[{900 + 25 * part + k // 1000:6}.{k % 1000:06}] NVRM: Xid (PCI:0000:3b:00): 13, pid=1, Graphics Exception"
            for k in range(25_000)
        ))  # fmt: skip
        began_s = time.process_time()
        told += len(look(one))
        used_s += time.process_time() - began_s
    assert used_s < 5.0
    why_not, lost = one.seeing()
    assert 0 < told <= 4 * MOST_LINES
    assert told + lost == 100_000
    assert "faster than they were read" in why_not
    look(one, NOW_NS + 60 * S)
    assert one.seeing() == ("", lost), "the flood is over, and what it cost stays known"


def test_what_cannot_be_read_says_why_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "later.log"
    one = watch(path)
    assert look(one) == []
    assert "No such file" in one.seeing()[0]
    append(path, XID_79)
    assert [h.device for h in look(one)] == ["n1/0"]
    assert one.seeing() == ("", 0)


def test_a_kept_position_of_another_source_means_nothing(log: Path, tmp_path: Path) -> None:
    append(log, XID_79)
    kept = json.dumps({"source": str(tmp_path / "other.log"), "position": "{}", "stamps": "no list"})
    one = watch(log, kept)
    append(log, XID_79.replace("219", "220"))
    assert len(look(one)) == 1


def test_a_log_without_stamps_tells_a_fault_again_when_it_comes_again(log: Path) -> None:
    one = watch(log)
    line = XID_79.partition("] ")[2]
    append(log, line)
    assert [h.finding.role for h in look(one)] == ["culprit"]
    append(log, line)
    assert [h.finding.role for h in look(one, NOW_NS + S)] == ["symptom"], "the same loss"
    append(log, line)
    assert [h.finding.role for h in look(one, NOW_NS + 3600 * S)] == ["culprit"]


@needs.root
def test_the_kernels_ring_is_read_from_now_on_and_after_a_restart_from_there() -> None:
    ring = KernelLog()
    assert ring.why_not() is None
    position = ring.position()
    ring.close()
    began_us = int(position.rpartition("@")[2])
    again = KernelLog(position)
    stamps_us = [int(line.data.split(b",")[2]) for line in again.poll()]
    again.close()
    assert all(stamp_us > began_us - 60_000 for stamp_us in stamps_us), "what was said before is not told"
    everything = KernelLog("another-boot 5")
    assert len(everything.poll()) > len(stamps_us), "of a new boot all is told"
    everything.close()
