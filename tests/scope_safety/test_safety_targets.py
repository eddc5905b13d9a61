"""Targets that do what nobody hopes for while they are looked at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from scope_calls.targets import C_HEAD, compiled, started
from scope_native.programs import MIXED, SPIN, running
from unidle.scope.model import Profile
from unidle.scope.tiers import ProfilerWatch, look, watch
from waiting import wait_until

pytestmark = needs.ebpf
TIERS = ("T0", "T1", "T2")


def on_cpu(profile: Profile, pid: int) -> list[str]:
    """Leaf-most Python or native function of every stack of a process that ran."""
    return [
        frame.function
        for sample in profile.samples
        if sample.pid == pid and sample.state == "on" and sample.count
        for frame in profile.stack(sample.stack)
    ]


def runs_on(watched: ProfilerWatch, pid: int, function: str) -> Profile:
    """Windows until one has the function on a CPU."""
    found: list[Profile] = []

    def one_more() -> bool:
        watched.run(0.1)
        found.append(watched.take())
        return function in on_cpu(found[-1], pid)

    wait_until(one_more, 60, f"{function} on a CPU")
    return found[-1]


@pytest.mark.parametrize("tier", TIERS)
def test_a_process_that_was_stopped_and_goes_on_is_seen_again(tier: str) -> None:
    with running(MIXED) as process, watch([process.pid], tier=tier) as watched:
        runs_on(watched, process.pid, "spin")
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T", what="the stop")
        watched.run(0.1)
        watched.take()
        assert watched.run(0.3) == 1  # it lives
        stopped = watched.take()
        assert sum(s.ns for s in stopped.samples if s.state == "on") == 0
        os.kill(process.pid, signal.SIGCONT)
        runs_on(watched, process.pid, "spin")


@pytest.mark.parametrize("tier", TIERS)
def test_a_process_that_is_stopped_before_the_look_keeps_being_stopped(tier: str) -> None:
    with running(MIXED) as process:
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T", what="the stop")
        profile = look([process.pid], 0.5, tier=tier)
        assert Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T"
    assert not on_cpu(profile, process.pid)


@pytest.mark.parametrize("how", ["overwritten by a rename", "deleted"])
def test_a_program_whose_file_is_replaced_has_its_own_names_and_not_the_new_ones(
    tmp_path: Path, how: str
) -> None:
    def program(name: str, function: str) -> Path:
        source = f"""
        __attribute__((noinline)) void {function}(volatile long *n) {{ while (1) ++*n; }}
        int main(void) {{ volatile long n = 0; step(); {function}(&n); return 0; }}
        """
        return compiled(source, tmp_path / name, "-fno-inline", head=C_HEAD)

    old = program("program", "was_there_before")
    with started([old]) as target:
        target.line()
        target.go()
        if how == "deleted":
            old.unlink()
        else:
            program("other", "came_later").rename(old)
        with watch([target.pid]) as watched:
            profile = runs_on(watched, target.pid, "was_there_before")
    assert "came_later" not in on_cpu(profile, target.pid)
    assert profile.quality.rooted_pct > 90


def test_five_hundred_threads_are_all_told_with_their_times(tmp_path: Path) -> None:
    source = """
    #include <pthread.h>
    static void *waits(void *with) { pause(); return 0; }
    int main(void) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 65536);
        for (int i = 0; i < 500; i++) { pthread_t t; if (pthread_create(&t, &small, waits, 0)) return 1; }
        step();
        for (volatile long n = 0;; n++);
    }
    """
    program = compiled(source, tmp_path / "threads", "-pthread", head=C_HEAD)
    with started([program]) as target:
        target.line()
        target.go()
        profile = look([target.pid], 1.0)
    assert len(profile.threads) == 501
    waiting = {s.tid for s in profile.samples if s.state == "off" and s.tid != target.pid}
    assert len(waiting) == 500
    assert all(t.on_ns + t.off_ns + t.runq_ns == t.last_ns - t.first_ns for t in profile.threads)
    assert profile.quality.drops == 0


def test_two_profilers_of_one_process_see_it_both() -> None:
    with running(MIXED) as process, watch([process.pid]) as one:
        with watch([process.pid]) as two:
            both = [runs_on(watched, process.pid, "spin") for watched in (one, two)]
            assert [len(p.threads) for p in both] == [4, 4]
        runs_on(one, process.pid, "spin")  # the end of one is none of the other


def test_a_process_that_gets_the_number_of_one_that_ended_is_not_taken_for_it() -> None:
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not (last.exists() and os.access(last, os.W_OK)):
        pytest.fail("the number of the next process cannot be asked for here")
    program = [sys.executable, "-c", SPIN.replace("spin", "came_later") + "came_later()"]
    with running(SPIN + "print('ready', flush=True)\nspin()\n") as process, watch([process.pid]) as watched:
        runs_on(watched, process.pid, "spin")
        process.kill()
        process.wait()
        for _ in range(200):
            last.write_text(str(process.pid - 1))
            other = subprocess.Popen(program)
            if other.pid == process.pid:
                break
            other.kill()
            other.wait()
        try:
            assert other.pid == process.pid
            wait_until(
                lambda: Path(f"/proc/{other.pid}/stat").read_text().split()[13] != "0", what="its start"
            )
            assert watched.run(1.0) == 0
            profile = watched.take()
        finally:
            other.kill()
            other.wait()
    assert "came_later" not in on_cpu(profile, process.pid)
    assert all(p.ended for p in profile.processes)
