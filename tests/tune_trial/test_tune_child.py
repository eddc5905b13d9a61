"""The contained child: time limits, keys, input, processes that it leaves, and its network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from unidle.tune.trial.child import run_child
from unidle.tune.trial.tree_copy import copy_tree, tree_hash


def test_output_times_and_exit_code(tmp_path: Path) -> None:
    done = run_child((sys.executable, "-S", "-c", "print('a'); raise SystemExit(7)"), tmp_path, tmp_path, 300)
    assert (done.code, done.output, done.failed) == (7, "a\n", "ended with 7")
    assert done.cpu_s > 0
    assert list(tmp_path.iterdir()) == []


def test_program_that_never_ends_is_killed_with_what_it_started(tmp_path: Path) -> None:
    text = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "open('pid', 'w').write(str(child.pid))\ntime.sleep(1000)"
    )
    folder = tmp_path / "program"
    folder.mkdir()
    done = run_child((sys.executable, "-S", "-c", text), folder, tmp_path, 20)
    assert done.timed_out
    assert done.failed == "did not end in its time"
    pid = int((folder / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z (zombie)" in Path(f"/proc/{pid}/status").read_text()


def test_keys_of_the_environment_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIDLE_TUNE_KEY", "k")
    monkeypatch.setenv("HF_TOKEN", "k")
    monkeypatch.setenv("SOME_PLAIN_NAME", "v")
    text = "import os; print([os.environ.get(n) for n in ('UNIDLE_TUNE_KEY', 'HF_TOKEN', 'SOME_PLAIN_NAME')])"
    done = run_child((sys.executable, "-S", "-c", text), tmp_path, tmp_path, 300)
    assert done.output == "[None, None, 'v']\n"


def test_program_that_asks_for_input_gets_none(tmp_path: Path) -> None:
    done = run_child((sys.executable, "-S", "-c", "input()"), tmp_path, tmp_path, 300)
    assert done.failed == "ended with 1: EOFError: EOF when reading a line"


def test_command_that_does_not_exist_is_a_failure(tmp_path: Path) -> None:
    done = run_child(("no-such-program-here",), tmp_path, tmp_path, 300)
    assert done.failed == "ended with 127: no-such-program-here: No such file or directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a network namespace")
def test_there_is_no_network_but_the_loopback(tmp_path: Path) -> None:
    text = (
        "import socket\nprint([name for _, name in socket.if_nameindex()])\n"
        "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print('loopback')"
    )
    done = run_child((sys.executable, "-S", "-c", text), tmp_path, tmp_path, 300)
    assert done.output.splitlines()[-1] == "loopback"
    assert "eth0" not in done.output


def test_copy_has_the_same_hash_without_repositories_and_pipes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / ".git").mkdir(parents=True)
    (tree / "a" / "x.py").write_text("x")
    (tree / "loop").symlink_to("..")
    copy_tree(tree, tmp_path / "copy")
    assert tree_hash(tree) == tree_hash(tmp_path / "copy")
    assert not (tmp_path / "copy" / "a" / ".git").exists()
    os.mkfifo(tree / "pipe")
    copy_tree(tree, tmp_path / "other")
    assert not (tmp_path / "other" / "pipe").exists()
    (tree / "a" / "x.py").write_text("y")
    assert tree_hash(tree) != tree_hash(tmp_path / "copy")
