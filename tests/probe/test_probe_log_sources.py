"""Followers on real files, the real kernel log and a real journalctl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import needs
from unidle.probe.followed_file import FollowedFile
from unidle.probe.journal import JournalSource
from unidle.probe.kernel_log import KernelLog
from unidle.probe.log_watch import LogSource
from waiting import wait_until


def texts(source: LogSource) -> list[str]:
    return [line.data.decode() for line in source.poll()]


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    append(path, "old 1", "old 2")
    return path


def test_a_file_is_followed_from_its_end_on(log: Path):
    source = FollowedFile(str(log))
    assert texts(source) == []
    append(log, "new 1", "new 2")
    assert texts(source) == ["new 1", "new 2"]
    assert texts(source) == []
    source.close()


def test_a_line_is_told_when_it_has_ended(log: Path):
    source = FollowedFile(str(log))
    with log.open("a") as file:
        file.write("half")
    assert texts(source) == []
    append(log, " whole")
    assert texts(source) == ["half whole"]
    source.close()


def test_rotation_by_rename_loses_nothing_and_repeats_nothing(log: Path):
    source = FollowedFile(str(log))
    append(log, "before")
    log.rename(log.with_suffix(".log.1"))
    append(log.with_suffix(".log.1"), "late")
    assert texts(source) == ["before", "late"]
    append(log, "after")
    assert texts(source) == ["after"]
    source.close()


def test_rotation_by_copy_and_truncate_starts_anew(log: Path):
    source = FollowedFile(str(log))
    append(log, "before")
    assert texts(source) == ["before"]
    shutil.copy(log, log.with_suffix(".log.1"))
    os.truncate(log, 0)
    append(log, "after")
    assert texts(source) == ["after"]
    os.truncate(log, 0)
    append(log, "longer than everything that was in the file before, so that its size tells nothing")
    assert texts(source) == [
        "longer than everything that was in the file before, so that its size tells nothing"
    ]
    source.close()


def test_a_file_that_is_not_there_says_so_and_is_read_from_its_beginning_when_it_comes(tmp_path: Path):
    path = tmp_path / "later.log"
    source = FollowedFile(str(path))
    why = source.why_not()
    assert why is not None
    assert "No such file" in why
    append(path, "first")
    assert texts(source) == ["first"]
    assert source.why_not() is None
    source.close()


def test_a_restart_goes_on_where_it_was_also_over_a_rotation(log: Path):
    source = FollowedFile(str(log))
    append(log, "one")
    assert texts(source) == ["one"]
    with log.open("a") as file:
        file.write("half")
    assert texts(source) == []
    kept = source.position()
    source.close()
    append(log, " whole", "two")
    again = FollowedFile(str(log), kept)
    assert texts(again) == ["half whole", "two"]
    kept = again.position()
    again.close()
    append(log, "three")
    log.rename(log.with_suffix(".log.1"))
    append(log, "four")
    third = FollowedFile(str(log), kept)
    assert texts(third) == ["three", "four"]
    third.close()


def test_a_restart_over_a_file_that_was_written_anew_reads_it_all(log: Path):
    source = FollowedFile(str(log))
    append(log, "one")
    texts(source)
    kept = source.position()
    source.close()
    log.write_text("another\nfile that is longer than the first one was\n")
    again = FollowedFile(str(log), kept)
    assert texts(again) == ["another", "file that is longer than the first one was"]
    again.close()


def test_a_position_that_is_none_is_not_believed(log: Path):
    for nonsense in ("x", "{}", '{"device": -1}', "[1]"):
        source = FollowedFile(str(log), nonsense)
        assert texts(source) == []
        source.close()


def test_a_flood_is_read_in_bounded_pieces_and_what_is_skipped_is_counted(log: Path):
    source = FollowedFile(str(log), most_bytes=1000, backlog_bytes=5000)
    append(log, *(f"line {k:05}" for k in range(2000)))
    seen: list[str] = []
    for _ in range(20):
        piece = texts(source)
        assert sum(len(line) + 1 for line in piece) <= 1000 + 11
        seen += piece
    assert source.lost == 2000 * 11 - 5000
    assert seen[-1] == "line 01999"
    assert len(seen) in (454, 455)
    source.close()


def own_line() -> str:
    return f"unidle-test-{uuid.uuid4().hex}"


def say(text: str) -> None:
    with open("/dev/kmsg", "w") as kmsg:
        kmsg.write(f"<6>{text}\n")


@needs.root
def test_the_kernel_log_tells_what_is_said_from_now_on_with_its_boot():
    old, new = own_line(), own_line()
    say(old)
    source = KernelLog()
    assert source.why_not() is None
    say(new)
    lines = [line for line in source.poll() if b"unidle-test-" in line.data]
    assert [line.data.decode().split(";")[1] for line in lines] == [new]
    assert lines[0].boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    source.close()


@needs.root
def test_a_restart_reads_what_was_said_in_between_and_nothing_twice():
    first, second = own_line(), own_line()
    source = KernelLog()
    say(first)
    assert any(first in text for text in texts(source))
    kept = source.position()
    source.close()
    say(second)
    again = KernelLog(kept)
    said = texts(again)
    assert any(second in text for text in said)
    assert not any(first in text for text in said)
    assert again.lost == 0
    again.close()


@needs.root
def test_a_position_of_an_earlier_boot_reads_all_of_this_one_in_bounded_pieces():
    mark = own_line()
    say(mark)
    source = KernelLog("another-boot 99999999", most=7)
    seen: list[str] = []
    while piece := texts(source):
        assert len(piece) <= 7
        seen += piece
    assert any(mark in text for text in seen)
    source.close()


def test_a_kernel_log_that_may_not_be_read_says_what_would_help(tmp_path: Path):
    source = KernelLog(path=str(tmp_path / "kmsg"))
    why = source.why_not()
    assert why is not None
    assert "CAP_SYSLOG" in why
    assert source.poll() == []
    source.close()


def test_a_journal_without_journalctl_says_what_to_follow_instead():
    source = JournalSource(command="no-such-journalctl")
    assert source.poll() == []
    why = source.why_not()
    assert why is not None
    assert "not installed" in why
    source.close()


RECORDS = [
    {"MESSAGE": "NVRM: Xid (PCI:0000:3b:00): 79, x", "_TRANSPORT": "kernel", "__CURSOR": f"s=1;i={k}"}
    for k in (1, 2)
]


@pytest.fixture
def reporter(tmp_path: Path) -> str:
    """A real process that speaks as journalctl does: it keeps its arguments and prints records, then waits."""
    script = tmp_path / "journalctl"
    records = "\n".join(json.dumps(record) for record in RECORDS)
    script.write_text(
        f"#!/bin/sh\necho \"$@\" >> {tmp_path}/arguments\ncat <<'E'\n{records}\nE\nexec sleep 600\n"
    )
    script.chmod(0o755)
    return str(script)


def test_the_journal_is_read_without_waiting_and_goes_on_behind_its_cursor(reporter: str, tmp_path: Path):
    source = JournalSource(command=reporter)
    seen: list[str] = []
    wait_until(lambda: seen.extend(texts(source)) or len(seen) == 2, timeout_s=60)
    assert source.position() == "s=1;i=2"
    source.close()
    again = JournalSource(source.position(), command=reporter)
    wait_until(lambda: len((tmp_path / "arguments").read_text().splitlines()) == 2, timeout_s=60)
    again.close()
    first, second = (tmp_path / "arguments").read_text().splitlines()
    assert "--lines=0" in first
    assert "--after-cursor=s=1;i=2" in second


def test_a_journal_that_ends_says_why_and_is_tried_again(tmp_path: Path):
    script = tmp_path / "journalctl"
    script.write_text("#!/bin/sh\necho 'Failed to open journal: Permission denied' >&2\nexit 1\n")
    script.chmod(0o755)
    source = JournalSource(command=str(script))
    wait_until(lambda: source.poll() == [] and source.why_not() is not None, timeout_s=60)
    assert "Permission denied" in str(source.why_not())
    script.write_text(f"#!/bin/sh\necho '{json.dumps(RECORDS[0])}'\nexec sleep 600\n")
    wait_until(lambda: source.poll() != [], timeout_s=60)
    assert source.why_not() is None
    source.close()


IN_A_JOURNAL = """
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/log/journal
{journald} & journald=$!
{python} {script}
code=$?
kill $journald
wait $journald
exit $code
"""
FOLLOW = """
import re, sys, time
from unidle.guard.log import Reader
from unidle.probe.journal import JournalSource

mark = sys.argv[1]

def say(text):
    with open("/dev/kmsg", "w") as kmsg:
        kmsg.write(f"<3>NVRM: Xid (PCI:0000:3b:00): 63, {mark} {text}.")

def numbers(lines):
    return {int(n) for line in lines for n in re.findall(mark.encode() + rb" (\\d+)[.]", line.data)}

def follow(source, first):
    "Say numbers until one is heard: a new journal needs a moment."
    lines, deadline = [], time.monotonic() + 30
    while not numbers(lines) and time.monotonic() < deadline:
        say(first)
        first += 1
        end = time.monotonic() + 0.5
        while time.monotonic() < end and not numbers(lines):
            lines += source.poll()
            time.sleep(0.01)
    return lines

source = JournalSource()
heard = numbers(follow(source, 0))
position = source.position()
source.close()
again = JournalSource(position)
lines = follow(again, 1000)
again.close()
assert heard and numbers(lines) and not heard & numbers(lines), (heard, numbers(lines))
found = [f for f in map(Reader().read, lines) if f is not None and mark.encode() in lines[f.line - 1].data]
assert {(f.kind, f.code, f.device) for f in found} == {("xid", 63, "0000:3b:00.0")}, found
"""


@needs.journal
def test_a_real_journal_is_followed_and_gone_on_with_behind_its_cursor(tmp_path: Path):
    script = tmp_path / "follow.py"
    script.write_text(FOLLOW)
    shell = IN_A_JOURNAL.format(
        journald=needs.journald(), python=sys.executable, script=f"{script} {own_line()}"
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", shell]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
