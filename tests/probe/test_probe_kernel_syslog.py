"""The kernel's ring by the system call syslog(2), on the kernel of this machine."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import needs
from unidle.probe.kernel_log import boot_id
from unidle.probe.kernel_syslog import KernelSyslog
from waiting import wait_until

pytestmark = needs.root


def written() -> str:
    """A line of level debug in the ring."""
    text = f"unidle test {secrets.token_hex(8)}"
    Path("/dev/kmsg").write_text(f"<15>{text}\n")
    return text


def counts(log: KernelSyslog, *texts: str) -> list[int]:
    lines = [line.data.decode() for line in log.poll()]
    return [sum(text in line for line in lines) for text in texts]


def test_lines_are_given_once_and_in_order() -> None:
    before = written()
    log = KernelSyslog(every_s=0)
    assert counts(log, before) == [0]
    first, second = written(), written()
    found = [line for line in log.poll() if b"unidle test" in line.data]
    assert [first in found[0].data.decode(), second in found[-1].data.decode()] == [True, True]
    assert counts(log, first, second) == [0, 0]
    third = written()
    assert counts(log, first, third) == [0, 1]
    assert (log.why_not(), log.news_fd()) == (None, -1)


def test_the_next_one_continues_where_this_one_was() -> None:
    log = KernelSyslog(every_s=0)
    first = written()
    assert counts(log, first) == [1]
    place = log.position()
    second = written()
    assert counts(KernelSyslog(place, every_s=0), first, second) == [0, 1]


def test_after_another_boot_all_of_this_one_is_read() -> None:
    line = written()
    assert counts(KernelSyslog("of another boot @5", every_s=0), line) == [1]
    assert KernelSyslog().position().startswith(boot_id())


def test_between_two_reads_there_is_a_pause() -> None:
    log = KernelSyslog(every_s=0.2)
    log.poll()
    line = written()
    assert counts(log, line) == [0]
    wait_until(lambda: counts(log, line) == [1], 30)


def test_without_the_right_the_reason_is_named(tmp_path: Path) -> None:
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() == "0":
        return  # everyone may read it here
    read, write = os.pipe()
    if not (child := os.fork()):
        os.setuid(65534)
        os.write(write, (KernelSyslog(every_s=0).why_not() or "").encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"CAP_SYSLOG" in os.read(read, 1000)
