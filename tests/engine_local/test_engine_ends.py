"""How ranks end, and how they are ended: nothing of them stays."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from engine_local.local_gangs import Machine, python, sh
from unidle.engine.local.ranks import process_tree

DAEMONS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def daemon(depth):
    if os.fork():
        return
    os.setsid()
    if depth:
        daemon(depth - 1)
    if os.fork():
        os._exit(0)
    print("daemon", os.getpid(), flush=True)
    time.sleep(300)
    os._exit(0)
for _ in range(3):
    daemon(2)
print("parent", flush=True)
"""


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -SEGV $$", -signal.SIGSEGV)]
)
def test_the_exit_mark_has_the_exit_code_or_the_signal(machine: Machine, script: str, code: int) -> None:
    gang = machine.start(sh(f"sleep 0.05; {script}"))
    assert gang.codes() == [code]
    assert gang.kinds() == ["spawn", "exit"]
    info = gang.last("exit").info
    assert info is not None and isinstance(info["cpu_ns"], int) and isinstance(info["peak_bytes"], int)
    assert info["cpu_ns"] > 0 and info["peak_bytes"] > 0 and info["stopped"] is False


def test_ranks_of_one_gang_end_one_by_one(machine: Machine) -> None:
    gang = machine.start(sh("[ $RANK = 1 ] && exit 0; [ $RANK = 2 ] && exit 3; exec sleep 300"), 3)
    gang.until(lambda: gang.kinds(1)[-1:] == ["exit"] == gang.kinds(2)[-1:])
    assert (gang.last("exit", 1).code, gang.last("exit", 2).code, gang.kinds(0)) == (0, 3, ["spawn"])
    gang.stop(5)
    assert gang.codes() == [-15, 0, 3]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("no-such-command",), 127, "command: No such file or directory: 'no-such-command'"),
        (("/etc/passwd",), 126, "command: Permission denied: '/etc/passwd'"),
        (("/etc",), 126, "command: Permission denied: '/etc'"),
        (("x" * 5000,), 126, "command: File name too long"),
    ],
)
def test_a_command_that_cannot_be_executed_ends_with_the_reason(
    machine: Machine, command: tuple[str, ...], code: int, words: str
) -> None:
    gang = machine.start(command, 2)
    assert gang.codes() == [code, code]
    assert gang.kinds() == ["note", "exit"]
    assert words in gang.notes()


def test_a_script_without_an_interpreter_ends_with_the_reason(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    gang = machine.start((str(script),))
    assert gang.codes() == [127]


def test_a_missing_workdir_ends_with_the_reason(machine: Machine, tmp_path: Path) -> None:
    gang = machine.start(sh("true"), workdir=str(tmp_path / "gone"))
    assert gang.codes() == [127]
    assert "workdir: No such file or directory" in gang.notes()


def test_starting_twice_changes_nothing(machine: Machine, tmp_path: Path) -> None:
    gang = machine.start(sh(f"echo $RANK >> {tmp_path}/ran; sleep 0.3"), 2)
    machine.engine.start(gang.command)
    gang.spawned()
    machine.engine.start(gang.command)
    assert gang.codes() == [0, 0]
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1"]


def test_a_stop_asks_with_sigterm_first(any_machine: Machine) -> None:
    gang = any_machine.start(sh("trap 'echo asked; exit 7' TERM; echo up; while :; do sleep 0.02; done"), 2)
    gang.printed("up", 0)
    gang.printed("up", 1)
    gang.stop()
    assert gang.codes() == [7, 7]
    assert "asked" in gang.log()
    assert gang.last("exit").info["stopped"] is True  # type: ignore[index]


def test_a_stop_kills_after_the_grace(any_machine: Machine) -> None:
    gang = any_machine.start(sh("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    gang.printed("up")
    gang.stop(0.3)
    assert gang.codes() == [-9]


def test_a_second_stop_shortens_the_grace_and_never_lengthens_it(any_machine: Machine) -> None:
    gang = any_machine.start(sh("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    gang.printed("up")
    gang.stop(600)
    gang.stop(0.2)
    gang.stop(600)
    assert gang.codes() == [-9]


def test_a_stopped_rank_can_be_ended(any_machine: Machine) -> None:
    gang = any_machine.start(sh("echo up; while :; do sleep 0.02; done"))
    gang.printed("up")
    pid = gang.last("spawn").pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    gang.until(lambda: process_tree.stat_of(pid)[0] == "T")  # type: ignore[index]
    gang.stop(10)
    assert gang.codes() == [-15]


def test_a_stop_before_the_start_leaves_a_lost_mark_and_no_process(machine: Machine, tmp_path: Path) -> None:
    gang = machine.start(sh(f"touch {tmp_path}/ran; sleep 300"), job="other")
    gang.spawned()
    unstarted = machine.follow(gang.command.__class__("job", 1, gang.command.spec, gang.command.places))
    unstarted.stop(5)
    assert [mark.k for mark in unstarted.ends()] == ["lost"]
    machine.engine.start(unstarted.command)
    assert unstarted.kinds() == ["lost"] and not unstarted.processes(0)


def test_daemons_of_a_rank_are_gone_after_a_stop(any_machine: Machine) -> None:
    gang = any_machine.start(python(DAEMONS + "time.sleep(300)"))
    gang.until(lambda: gang.log().count("daemon") == 9, what="nine daemons")
    assert len(gang.processes(0)) == 10
    gang.stop(0.2)
    gang.ends()
    assert not gang.processes(0)


def test_daemons_of_a_rank_are_gone_before_its_end_is_told(any_machine: Machine) -> None:
    """They ignore SIGTERM and hold the rank's output open."""
    gang = any_machine.start(python(DAEMONS + "sys.exit(4)"))
    assert gang.codes() == [4]
    assert gang.log().count("daemon") == 9
    assert not gang.processes(0)


def test_processes_that_fork_and_leave_without_end_are_ended(any_machine: Machine) -> None:
    code = """
import os, time
end = time.monotonic() + 20
for _ in range(6):
    if os.fork() == 0:
        while time.monotonic() < end:
            if os.fork():
                time.sleep(0.02)
                os._exit(0)
            os.setsid()
        os._exit(0)
print("up", flush=True)
time.sleep(300)
"""
    gang = any_machine.start(python(code))
    gang.printed("up")
    gang.stop(0)
    assert gang.codes() == [-9]
    assert not gang.processes(0)


def test_the_terminals_signals_do_not_reach_the_rank(machine: Machine) -> None:
    gang = machine.start(sh("echo up; sleep 0.3"))
    gang.printed("up")
    pid = machine.engine._gangs["job", 1].watches[0].pid
    assert pid is not None and os.getsid(pid) == pid
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGINT)
    assert gang.codes() == [0]


def test_sigusr1_to_the_supervisor_kills_at_once(any_machine: Machine) -> None:
    gang = any_machine.start(sh("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    gang.printed("up")
    pid = any_machine.engine._gangs["job", 1].watches[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGUSR1)
    assert gang.codes() == [-9]
