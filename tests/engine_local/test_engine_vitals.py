"""What a rank does is seen from outside, as the kernel tells it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import needs
from engine_local.local_gangs import Gang, Machine, python
from unidle.engine.local.ranks import rundir
from unidle.engine.local.vitals.process_state import ProcessReader, look_at, worker_of
from unidle.jobs import Limits
from unidle.jobs.vitals import Doing
from waiting import wait_until

S = 1_000_000_000


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that runs ``code``, from when it has printed a line."""
    with subprocess.Popen(
        python(f"import sys, os, time\nprint('up', flush=True)\n{code}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"up\n"
            yield child
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


@pytest.mark.parametrize(
    ("code", "doing"),
    [
        ("while True: pass", "running"),
        ("time.sleep(600)", "sleep"),
        ("import select; select.select([], [], [], 600)", "sleep"),
        ("import _thread; lock = _thread.allocate_lock(); lock.acquire(); lock.acquire()", "lock"),
        ("import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()", "network"),
        ("import socket; a, b = socket.socketpair(); b.recv(1)", "network"),
        ("import select, socket; a, b = socket.socketpair(); select.select([b], [], [])", "network"),
        ("os.read(0, 1)", "pipe"),
        ("import subprocess; subprocess.run(['sleep', '600'])", "child"),
    ],
)
def test_what_a_process_waits_for_is_told_apart(code: str, doing: Doing) -> None:
    with process(code) as child:
        wait_until(lambda: look_at(child.pid).doing == doing, 60, f"{doing}, not {look_at(child.pid)}")
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: look_at(child.pid).doing == "stopped", 60, "stopped")
        subprocess.run(["pkill", "-P", str(child.pid)], check=False)
    assert look_at(child.pid).doing == "gone"


def test_when_a_sleeping_rank_will_wake_up_is_known() -> None:
    with process("time.sleep(600)") as child:
        wait_until(lambda: look_at(child.pid).doing == "sleep", 60, "sleep")
        wakes_ns = look_at(child.pid).wakes_ns
    assert wakes_ns is not None
    assert 590 * S < wakes_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME) <= 600 * S


def test_an_eye_that_stays_open_sees_the_same_until_the_end() -> None:
    with process("os.read(0, 1)\ntime.sleep(600)") as child:
        eye = ProcessReader(child.pid)
        wait_until(lambda: eye.look().doing == "pipe", 60, "pipe")
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        wait_until(lambda: eye.look().doing == "sleep", 60, "sleep")
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: eye.look().doing == "stopped", 60, "stopped")
    assert eye.look().doing == "gone"
    eye.close()
    open_files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
    assert not any(f"/proc/{child.pid}/" in name for name in open_files)


@contextmanager
def with_number(pid: int) -> Iterator[None]:
    """A process that has the number of one that is gone."""
    for _ in range(200):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        with subprocess.Popen(["sleep", "600"]) as other:
            try:
                if other.pid == pid:
                    yield
                    return
            finally:
                other.kill()
    pytest.fail(f"no process got the number {pid}")


@needs.root
def test_an_eye_on_a_process_that_is_gone_sees_nothing_of_another_with_its_number() -> None:
    with process("import subprocess; subprocess.run(['sleep', '600'])") as child:
        eye = ProcessReader(child.pid)
        wait_until(lambda: eye.look().doing == "child", 60, "child")
        assert eye.children() and eye.on_cpu_ns() and eye.io_bytes() and eye.state_and_ticks()[0] == "S"
        for below in eye.children():
            os.kill(below, signal.SIGKILL)
    with with_number(child.pid):
        wait_until(lambda: look_at(child.pid).doing == "sleep", 60, "the other one")
        assert eye.look().doing == "gone"
        assert (eye.children(), eye.on_cpu_ns(), eye.io_bytes()) == (set(), 0, 0)
        assert eye.state_and_ticks() == ("Z", 0)
    eye.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "doing"),
    [
        ("while True: pass", "running"),
        ("import select, socket; a, b = socket.socketpair(); b.recv(1)", "network"),
    ],
)
def test_connections_of_ranks_that_work_are_read_now_and_then_and_of_those_that_wait_at_each_look(
    machine: Machine, code: str, doing: Doing
) -> None:
    gang = machine.start(python(code))
    gang.until(lambda: gang.vitals and gang.vitals[-1].ranks[0].doing == doing, what=doing)
    del gang.vitals[:]
    gang.until(lambda: len(gang.vitals) >= 9, what="looks")
    read = [one.links_read for one in gang.vitals[1:]]
    assert all(read) if doing == "network" else 0 < sum(read) < len(read)


def test_a_wrapper_is_seen_through() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 600; true'; true"]) as shell:
        try:
            wait_until(
                lambda: Path(f"/proc/{worker_of(shell.pid)}/comm").read_text() == "sleep\n", 60, "the worker"
            )
        finally:
            os.kill(worker_of(shell.pid), signal.SIGKILL)


def test_the_ranks_of_a_gang_are_looked_at_until_they_end(machine: Machine) -> None:
    gang = machine.start(
        python("import os, time\nif os.environ['RANK'] == '0':\n    while True: pass\ntime.sleep(600)"),
        ranks=2,
    )

    def doing(gang: Gang) -> list[str]:
        return [rank.doing for rank in gang.vitals[-1].ranks] if gang.vitals else []

    gang.until(lambda: doing(gang) == ["running", "sleep"], what="what both do")
    last = gang.vitals[-1]
    gang.until(lambda: gang.vitals[-1].ranks[0].cpu_ns > 0, what="CPU time")
    pid = gang.last("spawn", 1).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    now_ns = machine.engine._clock.now_ns()
    gang.until(lambda: doing(gang)[1:] == ["stopped"], what="the stop")
    assert abs(gang.vitals[-1].ranks[1].since_ns - now_ns) < S
    assert last.at_ns <= gang.vitals[-1].from_ns
    gang.stop(0)
    gang.ends()
    machine.engine.release("job", 1)
    gang.vitals.clear()
    time_of_a_look = time.monotonic() + 1.2
    wait_until(lambda: (gang.pump(), time.monotonic() > time_of_a_look)[1], 60)
    assert not gang.vitals


def test_what_a_rank_left_before_it_was_looked_at_comes_with_that_look(machine: Machine) -> None:
    gang = machine.start(
        python(
            "import time\nfor k in range(10**6):\n    print(f'iter {k}: loss 1.0, time 20.00ms', flush=True)\n    time.sleep(0.02)"
        )
    )
    gang.until(lambda: gang.kinds().count("step") > 3, what="steps")
    looks = 0

    def looked() -> bool:
        nonlocal looks
        left, before = (gang.rank(0) / rundir.JOURNAL).read_bytes().count(b"\n"), len(gang.vitals)
        gang.pump()
        if len(gang.vitals) > before:
            looks += 1
            assert len(gang.marks[0]) >= left
        return looks > 3

    wait_until(looked, 60, "looks")


@needs.cgroups
def test_what_a_cpu_quota_holds_is_seen(machine: Machine) -> None:
    gang = machine.start(python("while True: pass"), limits=Limits(cpus=0.25))
    held = gang.until(
        lambda: [
            v.ranks[0].throttled_ns for v in gang.vitals if v.ranks and v.ranks[0].throttled_ns > S // 10
        ],
        what="the quota",
    )
    assert held
