"""Tiers T1 (perf events) and T2 (/proc and memory) on real processes: shares against the truth, rights, choice."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import needs
from scope_native.programs import MIXED, running
from unidle.errors import BadInput
from unidle.scope.model import Profile, Sample
from unidle.scope.tiers import ProfilerWatch, look, watch
from waiting import wait_until

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("unidle_scope") is None, reason="needs the module unidle_scope"
    ),
    needs.root,
]
TIERS = ("T1", "T2")
POINTS = 10.0  # how far a share may be from the truth: four deviations of 400 samples

# Two functions that share CPU time 3 to 1 by the thread's own clock, whatever else the machine does.
PROPORTIONS = """
def burn(ns):
    until = time.thread_time_ns() + ns
    while time.thread_time_ns() < until:
        sum(range(200))
def large(): burn(30_000_000)
def small(): burn(10_000_000)
print("ready", flush=True)
while True:
    large()
    small()
"""
# Calls so short that frames change while they are read: a stack that mixes both chains would be torn.
HASTE = """
def leaf_a(): return 1
def leaf_b(): return 2
def chain_a(): return leaf_a() + leaf_a()
def chain_b(): return leaf_b() + leaf_b()
print("ready", flush=True)
while True:
    chain_a()
    chain_b()
"""


def names(profile: Profile, sample: Sample) -> list[str]:
    return [frame.function for frame in profile.stack(sample.stack)]


def gathered(watched: ProfilerWatch, enough: Callable[[list[Profile]], bool]) -> list[Profile]:
    """Windows until there is enough: how long that takes depends on the machine's load."""
    windows: list[Profile] = []

    def one_more() -> bool:
        watched.run(0.5)
        windows.append(watched.take())
        return enough(windows)

    wait_until(one_more, timeout_s=60, what="enough samples")
    return windows


def on_cpu(windows: list[Profile]) -> int:
    return sum(s.count for w in windows for s in w.samples if s.state == "on")


@pytest.mark.parametrize("tier", TIERS)
def test_shares_of_functions_are_their_shares_of_cpu_time(tier: str) -> None:
    with running(PROPORTIONS) as process, watch([process.pid], hz=499, tier=tier) as watched:
        windows = gathered(watched, lambda w: on_cpu(w) >= 400)
    found: Counter[str] = Counter()
    for window in windows:
        for sample in window.samples:
            if sample.state == "on":
                path = set(names(window, sample))
                found[next((n for n in ("large", "small") if n in path), "neither")] += sample.ns
    percent = {name: 100 * ns / found.total() for name, ns in found.items()}
    assert percent["large"] == pytest.approx(75, abs=POINTS)
    assert percent["small"] == pytest.approx(25, abs=POINTS)
    assert percent.get("neither", 0) < 3


@pytest.mark.parametrize("tier", TIERS)
def test_threads_that_wait_say_what_for_and_their_times_fill_the_window(tier: str) -> None:
    with running(MIXED) as process, watch([process.pid], tier=tier) as watched:
        windows = gathered(watched, lambda w: on_cpu(w) >= 20)
    waits: dict[str, set[str]] = {}
    for window in windows:
        assert len(window.threads) == 4
        for thread in window.threads:
            assert thread.on_ns + thread.off_ns + thread.runq_ns == thread.last_ns - thread.first_ns
        for sample in window.samples:
            stack = window.stack(sample.stack)
            if stack[-1].kind == "wait":
                path = names(window, sample)
                at = next((n for n in ("naps", "waits") if n in path), "other")
                waits.setdefault(at, set()).add(stack[-1].function)
    assert waits["waits"] == {"futex"}
    assert "sleep" in waits["naps"]
    blocked = [t for window in windows for t in window.threads if t.on_ns == t.runq_ns == 0]
    assert blocked and all(t.off_ns == t.last_ns - t.first_ns for t in blocked)


@pytest.mark.parametrize("tier", TIERS)
def test_times_on_a_cpu_are_the_schedulers_own(tier: str) -> None:
    with running(MIXED) as process, watch([process.pid], tier=tier) as watched:
        watched.take()
        schedstat = Path(f"/proc/{process.pid}/schedstat")
        before = int(schedstat.read_text().split()[0])
        windows = gathered(watched, lambda w: on_cpu(w) >= 10)
        after = int(schedstat.read_text().split()[0])
    told = sum(t.on_ns for w in windows for t in w.threads if t.tid == process.pid)
    # Booked between the readings here and those of the profiler.
    assert told == pytest.approx(after - before, abs=30_000_000)


def test_native_frames_of_running_threads_are_in_t1_and_t2_says_that_it_has_none() -> None:
    with running(PROPORTIONS) as process:
        perf = look([process.pid], 1.0, hz=499, tier="T1")
        procfs = look([process.pid], 1.0, tier="T2")
    running_stacks = [perf.stack(s.stack) for s in perf.samples if s.state == "on" and s.count]
    kinds = {frame.kind for stack in running_stacks for frame in stack}
    assert {"python", "native"} <= kinds
    assert perf.quality.rooted_pct > 95
    assert any("native and kernel frames of threads that run" in miss for miss in procfs.misses)
    assert {f.kind for s in procfs.samples if s.state == "on" for f in procfs.stack(s.stack)} == {"python"}


@pytest.mark.parametrize("tier", TIERS)
def test_frames_that_change_while_they_are_read_make_no_stack_that_never_was(tier: str) -> None:
    with running(HASTE) as process, watch([process.pid], hz=499, tier=tier) as watched:
        windows = gathered(watched, lambda w: on_cpu(w) >= 300)
    python = ("<module>", "chain_a", "chain_b", "leaf_a", "leaf_b")
    paths = Counter[tuple[str, ...]]()
    for window in windows:
        for sample in window.samples:
            if sample.state == "on" and sample.count:
                paths[tuple(n for n in names(window, sample) if n in python)] += sample.count
    real = {
        ("<module>",), ("<module>", "chain_a"), ("<module>", "chain_b"),
        ("<module>", "chain_a", "leaf_a"), ("<module>", "chain_b", "leaf_b"),
    }  # fmt: skip
    impossible = sum(count for path, count in paths.items() if path and path not in real)
    assert impossible <= 0.02 * paths.total(), paths


@pytest.mark.parametrize("tier", TIERS)
def test_children_that_come_later_are_followed(tier: str) -> None:
    source = """
    import subprocess
    print("ready", flush=True)
    sys.stdin.readline()
    child = "def in_child():\\n    while True: sum(range(1000))\\nin_child()"
    subprocess.run([sys.executable, "-c", child])
    """
    with running(source) as process, watch([process.pid], tier=tier) as watched:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        gathered(watched, lambda w: any(f.function == "in_child" for f in w[-1].frames))
        windows = gathered(
            watched, lambda w: any(p.parent == process.pid and p.python for p in w[-1].processes)
        )
    child = next(p for p in windows[-1].processes if p.parent == process.pid)
    assert child.python == f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize("tier", TIERS)
def test_a_look_ends_with_its_target(tier: str) -> None:
    source = 'print("ready", flush=True)\nsys.stdin.readline()'
    with running(source) as process, watch([process.pid], tier=tier) as watched:
        watched.run(0.1)
        process.kill()
        process.wait()
        assert watched.run(600) == 0
        profile = watched.take()
    assert [p.ended for p in profile.processes] == [True]


@pytest.mark.parametrize("tier", TIERS)
def test_loaders_and_the_trainer_that_waits_for_them_are_seen(tier: str) -> None:
    source = """
    import torch
    from torch.utils.data import DataLoader, Dataset
    class Slow(Dataset):
        def __len__(self): return 10**9
        def __getitem__(self, n):
            until = time.thread_time() + 0.02
            while time.thread_time() < until: pass
            return torch.zeros(8)
    loader = iter(DataLoader(Slow(), batch_size=2, num_workers=2))
    next(loader)
    print("ready", flush=True)
    for batch in loader:
        batch.square().sum()
    """
    with (
        running(source, before=("env", "OMP_NUM_THREADS=1")) as process,
        watch([process.pid], tier=tier) as watched,
    ):
        windows = gathered(watched, lambda w: on_cpu(w) >= 60)
    last = windows[-1]
    assert len(last.processes) == 3
    in_items: set[int] = set()
    trainer: Counter[bool] = Counter()
    for window in windows:
        for sample in window.samples:
            path = " ".join(names(window, sample))
            if "__getitem__" in path:
                in_items.add(sample.pid)
            if sample.tid == process.pid:
                trainer["_next_data" in path] += sample.ns
    workers = {p.pid for p in last.processes if p.parent == process.pid}
    assert in_items == workers
    assert trainer[True] > trainer[False]


AS_USER = """
import os, sys
import unidle_scope
import unidle.errors
from unidle.scope.tiers import look, native
pid, uid, tier = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
os.setgroups([]); os.setgid(uid); os.setuid(uid)
try:
    profile = look([pid], 0.5, tier=tier)
    print(profile.tier, *profile.misses, sep="\\n")
    print(*profile.quality.notes, *{f.function for f in profile.frames}, sep="\\n")
except unidle.errors.CannotRun as error:
    print("refused", error.exit_code, error.line(), sep="\\n")
"""
NOBODY, ANOTHER = 65534, 65533


def as_user(uid: int, pid: int, tier: str = "") -> list[str]:
    """What a user without rights is told of a process."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", AS_USER, str(pid), str(uid), tier], env=environ, capture_output=True, text=True, cwd="/",
        check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    return told.stdout.splitlines()


# A process that changed its user may not be traced, until it says that it may (PR_SET_DUMPABLE).
OWNED_BY_NOBODY = f"""
import ctypes
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""


def readable_by_all() -> str:
    """An interpreter whose files every user may read: one in root's home has no symbols for another user."""
    for program in (sys.executable, "/usr/bin/python3"):
        real = Path(program).resolve()
        if real.exists() and all(folder.stat().st_mode & 0o001 for folder in real.parents):
            return program
    raise AssertionError("no interpreter here is readable by every user")


def test_a_user_without_rights_gets_the_best_tier_of_its_own_processes_and_the_reason() -> None:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    may_read = not scope.exists() or int(scope.read_text()) == 0
    with running(OWNED_BY_NOBODY + PROPORTIONS, python=readable_by_all()) as process:
        chosen = as_user(NOBODY, process.pid)
        forced = as_user(NOBODY, process.pid, "T2")
        refused = as_user(NOBODY, process.pid, "T0")
    best = "T1" if paranoid <= 2 else "T2" if may_read else "refused"
    assert chosen[0] == best
    assert any("tier T0 did not start" in line for line in chosen)
    assert ({"large", "burn"} <= set(chosen)) == may_read
    assert forced[0] == ("T2" if may_read else "refused")
    assert refused[:2] == ["refused", "3"] and len(refused) == 3


def test_a_process_of_another_user_is_refused_in_one_line() -> None:
    with running(OWNED_BY_NOBODY + PROPORTIONS) as process:
        for tier in ("", "T1", "T2"):
            refused = as_user(ANOTHER, process.pid, tier)
            assert refused[:2] == ["refused", "3"] and len(refused) == 3
            assert f"process {process.pid} belongs to user {NOBODY}" in refused[2]
            assert "run as that user or as root" in refused[2]


@pytest.mark.parametrize(("tier", "says"), [("T3", "--from"), ("T9", "T0, T1 and T2"), ("", "is none")])
def test_a_tier_that_cannot_look_is_refused(tier: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        look([os.getpid()], 1, tier=tier)


@pytest.mark.parametrize("tier", TIERS)
def test_a_process_that_is_not_there_is_bad_input(tier: str) -> None:
    with pytest.raises(BadInput, match="4194303"):
        look([4194303], 1, tier=tier)


def test_no_descriptor_is_left_open() -> None:
    with running(MIXED) as process:
        look([process.pid], 0.1, tier="T1")
        before = set(Path("/proc/self/fd").iterdir())
        for tier in TIERS:
            look([process.pid], 0.1, tier=tier)
        assert set(Path("/proc/self/fd").iterdir()) == before


def test_files_that_a_user_may_not_read_are_named(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    copy = hidden / "python3"
    copy.write_bytes(Path(readable_by_all()).resolve().read_bytes())
    copy.chmod(0o755)
    with running(OWNED_BY_NOBODY + PROPORTIONS, python=str(copy)) as process:
        told = as_user(NOBODY, process.pid)
    assert any(f"may not read {copy}" in line for line in told), told
