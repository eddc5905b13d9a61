"""Notices to files and to commands, real ones."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unidle.notices.send_queue import Delivery
from unidle.notices.sender import append, run


def test_a_log_grows_by_one_line_each(tmp_path: Path) -> None:
    log = tmp_path / "notices.jsonl"
    assert [append(str(log), b'{"n":%d}' % n) for n in range(3)] == [Delivery("done")] * 3
    assert [json.loads(line)["n"] for line in log.read_text().splitlines()] == [0, 1, 2]


def test_a_log_may_be_moved_away_between_two_lines(tmp_path: Path) -> None:
    log = tmp_path / "notices.jsonl"
    append(str(log), b"1")
    log.rename(tmp_path / "notices.jsonl.1")
    append(str(log), b"2")
    assert ((tmp_path / "notices.jsonl.1").read_text(), log.read_text()) == ("1\n", "2\n")


def test_a_line_that_another_left_unfinished_does_not_swallow_the_next(tmp_path: Path) -> None:
    log = tmp_path / "notices.jsonl"
    log.write_text('{"n":1}\n{"n"')
    assert append(str(log), b'{"n":2}') == Delivery("done")
    assert log.read_text() == '{"n":1}\n{"n"\n{"n":2}\n'


def test_a_line_that_does_not_fit_is_taken_back_and_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "notices.jsonl"
    log.write_text("1\n")
    child = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY));"
        "from unidle.notices.sender import append; print(append(sys.argv[1], b'x' * 100))"
    )
    done = subprocess.run([sys.executable, "-c", child, str(log)], capture_output=True, text=True, check=True)
    assert "file too large" in done.stdout
    assert log.read_text() == "1\n"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10


@pytest.mark.parametrize("kind", ["directory", "fifo", "missing", "device"])
def test_what_cannot_be_a_log_is_said_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "log"
    if kind == "directory":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "missing":
        place = tmp_path / "no" / "log"
    else:
        place = Path("/dev/null")
    answer = append(str(place), b"1")
    assert answer.outcome == "again"
    assert answer.text


def test_a_command_gets_the_notice_on_standard_input_and_no_shell_reads_its_words(tmp_path: Path) -> None:
    child = (
        "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(repr((sys.argv[2:], sys.stdin.read())))"
    )
    words = ("$(touch x)", "; touch y", "a b")
    assert run((sys.executable, "-c", child, str(tmp_path / "out"), *words), b'{"n":1}') == Delivery("done")
    assert (tmp_path / "out").read_text() == repr((list(words), '{"n":1}\n'))


def test_a_command_that_fails_is_tried_again() -> None:
    assert run(("false",), b"{}") == Delivery("again", "exited 1")
    assert run(("sh", "-c", "kill -9 $$"), b"{}") == Delivery("again", "was killed by signal 9")
    assert run(("/no/such/program",), b"{}") == Delivery("again", "cannot be run: no such file or directory")


def test_a_command_need_not_read_what_it_is_given() -> None:
    assert run(("true",), b"x" * 1_000_000) == Delivery("done")


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    begun_s = time.monotonic()
    answer = run(("sh", "-c", f"sleep 600 & echo $! > {pid_file}; wait"), b"x" * 1_000_000, 0.5)
    assert answer == Delivery("again", "did not end within 0.5 s, and was killed")
    assert time.monotonic() - begun_s < 60
    child = int(pid_file.read_text())
    deadline = time.monotonic() + 60
    while (
        time.monotonic() < deadline
        and Path(f"/proc/{child}").exists()
        and "Z" not in Path(f"/proc/{child}/stat").read_text()
    ):
        time.sleep(0.01)
    assert not Path(f"/proc/{child}").exists() or ") Z" in Path(f"/proc/{child}/stat").read_text()
