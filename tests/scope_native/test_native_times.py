"""Exact times: every thread's states fill its time to the nanosecond, and agree with the scheduler's own books."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from scope_native.programs import MIXED, SPIN, running
from unidle.scope.model import Profile
from unidle.scope.tiers import ProfilerWatch, watch

pytestmark = needs.ebpf

TICK_NS = 10_000_000  # the scheduler's own books lag by up to a tick


@pytest.fixture
def mixed() -> Iterator[int]:
    with running(MIXED) as process:
        yield process.pid


def shares(profile: Profile) -> Counter[tuple[int, int, str]]:
    found: Counter[tuple[int, int, str]] = Counter()
    for sample in profile.samples:
        found[sample.pid, sample.tid, sample.state] += sample.ns
    return found


def test_the_three_times_of_every_thread_fill_its_time_exactly(mixed: int) -> None:
    with watch([mixed]) as watched:
        for _ in range(3):
            watched.run(0.4)
            profile = watched.take()
            assert len(profile.threads) == 4
            for thread in profile.threads:
                assert thread.on_ns + thread.off_ns + thread.runq_ns == thread.last_ns - thread.first_ns


def test_windows_follow_each_other_without_a_gap(mixed: int) -> None:
    with watch([mixed]) as watched:
        watched.run(0.2)
        first = watched.take()
        watched.run(0.2)
        second = watched.take()
    assert second.start_ns == first.end_ns
    ends = {t.tid: t.last_ns for t in first.threads}
    assert {t.tid: t.first_ns for t in second.threads} == ends


def test_samples_share_the_exact_time_of_their_thread(mixed: int) -> None:
    with watch([mixed]) as watched:
        watched.run(0.6)
        profile = watched.take()
    found = shares(profile)
    for thread in profile.threads:
        exact = (thread.on_ns, thread.off_ns, thread.runq_ns)
        assert tuple(found[thread.pid, thread.tid, state] for state in ("on", "off", "runq")) == exact


def test_what_blocked_before_the_look_began_is_blocked_all_the_time(mixed: int) -> None:
    with watch([mixed]) as watched:
        watched.run(0.3)
        profile = watched.take()
    blocked = [t for t in profile.threads if t.off_ns == t.last_ns - t.first_ns]
    assert len(blocked) == 2  # those that wait for an event that never comes
    for thread in blocked:
        (sample,) = [s for s in profile.samples if s.tid == thread.tid]
        assert profile.stack(sample.stack)[-1].function == "futex"


def on_cpu_ns(pid: int, tid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0])


def test_time_on_a_cpu_is_what_the_scheduler_counted(mixed: int) -> None:
    with watch([mixed]) as watched:
        outer = on_cpu_ns(mixed, mixed)
        watched.take()
        inner = on_cpu_ns(mixed, mixed)
        watched.run(1.0)
        inner = on_cpu_ns(mixed, mixed) - inner
        profile = watched.take()
        outer = on_cpu_ns(mixed, mixed) - outer
    (main,) = [t for t in profile.threads if t.tid == mixed]
    assert inner - TICK_NS <= main.on_ns <= outer + TICK_NS


def test_a_thread_that_only_runs_has_as_many_samples_as_its_time_has_periods(mixed: int) -> None:
    with watch([mixed], hz=199) as watched:
        watched.run(1.0)
        profile = watched.take()
    (main,) = [t for t in profile.threads if t.tid == mixed]
    samples = sum(s.count for s in profile.samples if s.tid == mixed and s.state == "on")
    # A sample falls by chance into a turn on a CPU, so that its number scatters as the root of it.
    expected = main.on_ns * 199 / 1e9
    assert abs(samples - expected) <= 5 * max(expected, 1) ** 0.5 + 3


def test_without_off_cpu_only_what_runs_is_told(mixed: int) -> None:
    with watch([mixed], off_cpu=False) as watched:
        watched.run(0.4)
        profile = watched.take()
    assert {s.state for s in profile.samples} == {"on"}
    assert any("wait" in line for line in profile.misses)
    assert all(t.on_ns + t.off_ns + t.runq_ns == t.last_ns - t.first_ns for t in profile.threads)


def test_threads_that_begin_and_end_while_watched_keep_their_times() -> None:
    source = SPIN.replace("while True:", "for _ in range(20):") + (
        "print('ready', flush=True)\n"
        "while True:\n"
        "    t = threading.Thread(target=spin, name='brief')\n"
        "    t.start(); t.join()\n"
    )
    with running(source) as process, watch([process.pid]) as watched:
        told: list[Profile] = []
        while sum(len(p.threads) for p in told) < 30:
            watched.run(0.2)
            told.append(watched.take())
    for profile in told:
        for thread in profile.threads:
            assert thread.on_ns + thread.off_ns + thread.runq_ns == thread.last_ns - thread.first_ns
    brief = [t for p in told for t in p.threads if t.tid != process.pid]
    assert len({t.tid for t in brief}) >= 20
    assert all(t.on_ns > 0 for p in told[:-1] for t in p.threads if t.tid != process.pid)


def test_a_look_at_oneself_is_possible() -> None:
    with watch([os.getpid()]) as watched:
        watched.run(0.1)
        assert os.getpid() in {t.pid for t in watched.take().threads}


def test_nothing_of_a_process_that_is_not_watched_is_told(mixed: int) -> None:
    with running(MIXED) as other, watch([mixed]) as watched:
        watched.run(0.4)
        profile = watched.take()
        assert {t.pid for t in profile.threads} == {mixed}
        watched.add(other.pid)
        watched.run(0.4)
        profile = watched.take()
        assert {t.pid for t in profile.threads} == {mixed, other.pid}


def test_a_watch_that_is_closed_says_so(mixed: int) -> None:
    watched: ProfilerWatch
    with watch([mixed]) as watched:
        pass
    with pytest.raises(ValueError, match="closed"):
        watched.run(0.1)
