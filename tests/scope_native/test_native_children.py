"""Processes that fork, exec, end, stop and hide in namespaces while they are watched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import needs
from scope_native.programs import MIXED, SPIN, running
from unidle.scope.model import Profile
from unidle.scope.tiers import ProfilerWatch, look, watch
from waiting import wait_until

pytestmark = needs.ebpf


def go(process: subprocess.Popen[str]) -> None:
    """Let a program that waits for its input go on."""
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    """Let a program that waits for its input go on, and say no more."""
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.close()


def until(watched: ProfilerWatch, predicate: Callable[[Profile], bool], what: str) -> Profile:
    """Runs and takes until a profile is as it should be."""
    found: list[Profile] = []

    def look_on() -> bool:
        watched.run(0.1)
        found.append(watched.take())
        return predicate(found[-1])

    wait_until(look_on, 60, what)
    return found[-1]


FORKS = (
    SPIN
    + """
print("ready", flush=True)
sys.stdin.readline()
if os.fork() == 0:
    spin()
os.wait()
"""
)


def test_a_child_is_followed_from_its_first_moment() -> None:
    with running(FORKS) as process, watch([process.pid]) as watched:
        go(process)
        profile = until(
            watched, lambda p: any(s.pid != process.pid and s.state == "on" for s in p.samples), "child"
        )
        (child,) = [p for p in profile.processes if p.pid != process.pid]
        assert child.parent == process.pid
        assert not child.ended
        assert all(t.on_ns + t.off_ns + t.runq_ns == t.last_ns - t.first_ns for t in profile.threads)


def test_children_that_were_there_before_are_watched_too() -> None:
    source = SPIN + "if os.fork() == 0:\n    spin()\nprint('ready', flush=True)\nos.wait()\n"
    with running(source) as process, watch([process.pid]) as watched:
        watched.run(0.2)
        assert len(watched.take().processes) == 2


def test_children_are_left_alone_if_they_are_not_to_be_followed() -> None:
    with running(FORKS) as process, watch([process.pid], follow=False) as watched:
        go(process)
        watched.run(0.5)
        assert {p.pid for p in watched.take().processes} == {process.pid}


def test_a_thousand_forks_are_all_told_and_leave_nothing_behind() -> None:
    source = """
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(1000):
        if os.fork() == 0:
            os._exit(0)
        os.wait()
    print("done", flush=True)
    sys.stdin.readline()
    """
    with running(source) as process, watch([process.pid]) as watched:
        go(process)
        seen: set[int] = set()
        for _ in range(200):
            watched.run(0.1)
            profile = watched.take()
            seen |= {t.pid for t in profile.threads}
            assert all(t.on_ns + t.off_ns + t.runq_ns == t.last_ns - t.first_ns for t in profile.threads)
            if len(seen) == 1001:
                break
        assert len(seen) == 1001
        # Ended processes are told once, and then forgotten.
        profile = until(watched, lambda p: len(p.processes) == 1, "the ended to be forgotten")
        assert len(profile.threads) == 1
        assert not [note for note in profile.quality.notes if "no place" in note]


def test_a_look_ends_when_its_process_does_and_tells_what_was_seen() -> None:
    source = (
        SPIN
        + "threading.Thread(target=spin, daemon=True).start()\nprint('ready', flush=True)\nsys.stdin.readline()\n"
    )
    with running(source) as process:
        profile = look([process.pid], 60, while_looking=lambda _: process.stdin.closed or end(process))
    assert profile.seconds < 60
    (told,) = profile.processes
    assert told.ended
    assert sum(s.ns for s in profile.samples if s.state == "on") > 0


def test_a_process_that_is_killed_is_told_as_ended() -> None:
    with running(MIXED) as process, watch([process.pid]) as watched:
        watched.run(0.2)
        process.kill()
        process.wait()
        assert watched.run(20) == 0
        profile = watched.take()
        assert profile.processes[0].ended
        assert len(profile.threads) == 4
        assert all(t.on_ns + t.off_ns + t.runq_ns == t.last_ns - t.first_ns for t in profile.threads)


def test_a_process_whose_first_thread_ended_before_the_others_lives() -> None:
    leave = "import ctypes; ctypes.CDLL(None).syscall(60, 0)"  # exit of this thread alone; 60 is its number on x86-64
    source = (
        f"print('ready', flush=True)\nsys.stdin.readline()\nthreading.Thread(target=spin).start()\n{leave}\n"
    )
    with running(SPIN + source) as process, watch([process.pid]) as watched:
        go(process)
        wait_until(lambda: "Z" in Path(f"/proc/{process.pid}/stat").read_text().split()[2], what="its end")
        assert watched.run(0.5) == 1
        assert not watched.take().processes[0].ended


def test_a_zombie_does_not_live() -> None:
    with (
        running("print('ready', flush=True)\nsys.stdin.readline()\n") as process,
        watch([process.pid]) as watched,
    ):
        go(process)
        wait_until(lambda: "Z" in Path(f"/proc/{process.pid}/stat").read_text().split()[2], what="a zombie")
        assert watched.run(20) == 0


@pytest.mark.parametrize("where", ["the first thread", "another thread"])
def test_a_process_that_execs_is_called_what_it_became_and_is_still_watched(where: str) -> None:
    exec_it = f"os.execv(sys.executable, [sys.executable, '-c', {SPIN + 'spin()'!r}, 'became'])"
    source = "print('ready', flush=True)\nsys.stdin.readline()\n"
    if where == "another thread":
        source += f"threading.Thread(target=lambda: {exec_it}).start()\ntime.sleep(100)\n"
    else:
        source += exec_it + "\n"
    with running(source) as process, watch([process.pid]) as watched:
        go(process)
        profile = until(
            watched,
            lambda p: (
                any(row.command.endswith("became") for row in p.processes)
                and any(s.state == "on" and s.count for s in p.samples)
            ),
            "the exec",
        )
        assert {t.tid for t in profile.threads} >= {process.pid}
        assert all(t.on_ns + t.off_ns + t.runq_ns == t.last_ns - t.first_ns for t in profile.threads)
        assert not profile.processes[0].ended


def test_a_stopped_process_is_told_as_stopped() -> None:
    with running(MIXED) as process, watch([process.pid]) as watched:
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T", what="the stop")
        watched.take()
        watched.run(0.3)
        profile = watched.take()
        leaves = {profile.stack(s.stack)[-1].function for s in profile.samples if s.tid == process.pid}
        assert "stopped" in leaves
        (main,) = [t for t in profile.threads if t.tid == process.pid]
        assert main.on_ns == 0
        os.kill(process.pid, signal.SIGCONT)


def test_a_process_in_a_pid_namespace_of_its_own_is_watched_by_its_outer_number() -> None:
    unshare = shutil.which("unshare")
    assert unshare
    source = MIXED.replace('print("ready"', 'print("ready", os.getpid()')
    with running(source, before=[unshare, "--pid", "--fork", "--mount-proc"]) as process:
        (inner,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        with watch([int(inner)]) as watched:
            watched.run(0.5)
            profile = watched.take()
    assert {t.pid for t in profile.threads} == {int(inner)}
    assert len(profile.threads) == 4
    assert any(s.state == "on" and s.count for s in profile.samples)


def test_a_target_is_never_stopped_or_traced_by_the_look() -> None:
    with running(MIXED) as process, watch([process.pid]) as watched:
        watched.run(0.2)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "TracerPid:\t0" in status
