"""What the doctor says of the profiler: for kinds of users, and by really trying as root and as nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from unidle.doctor import kernel, profiler
from unidle.doctor.profiler import ProfilerSupport

ALL = frozenset(range(41))
ROOT = ProfilerSupport(
    module=True,
    bpf="",
    btf=True,
    perf="",
    capabilities=ALL,
    ptrace_scope=1,
    inner_pids=False,
    container=False,
)
USER = replace(ROOT, bpf="bpf() is refused (EPERM)", capabilities=frozenset(), ptrace_scope=0)


def test_root_has_the_highest_tier_and_nothing_to_do() -> None:
    tier, memory = profiler.profiler(ROOT)
    assert (tier.state, tier.detail, tier.remedy) == ("ok", "T0 (eBPF)", "")
    assert memory.state == "ok"


@pytest.mark.parametrize(
    ("known", "works", "reason", "remedy"),
    [
        (USER, "T1", "not T0: bpf() is refused (EPERM)", "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE"),
        (
            replace(USER, perf="perf_event_open() is refused (EACCES)"),
            "T2",
            "not T1",
            "perf_event_paranoid=2",
        ),
        (
            replace(USER, perf="perf_event_open() is refused (EACCES)", ptrace_scope=1),
            "T3",
            "not T2",
            "for T0",
        ),
        (replace(ROOT, btf=False), "T1", "no BTF", "CONFIG_DEBUG_INFO_BTF"),
        (replace(ROOT, inner_pids=True, container=True), "T1", "pid namespace", "--pid=host"),
        (replace(USER, container=True), "T1", "EPERM", "--cap-add=BPF"),
        (replace(ROOT, module=False), "T3", "not installed", "install the wheel unidle_scope"),
    ],
)
def test_each_user_is_told_the_tier_that_works_and_what_the_next_needs(
    known: ProfilerSupport, works: str, reason: str, remedy: str
) -> None:
    tier = profiler.profiler(known)[0]
    assert tier.detail.startswith(works) and reason in tier.detail
    assert remedy in tier.remedy
    assert tier.state == ("missing" if works == "T3" else "limited")


@pytest.mark.parametrize(
    ("scope", "held", "state"),
    [
        (0, ALL, "ok"),
        (2, ALL, "ok"),
        (3, ALL, "limited"),
        (0, frozenset(), "limited"),
        (1, frozenset(), "limited"),
    ],
)
def test_reading_other_processes_depends_on_yama(scope: int, held: frozenset[int], state: str) -> None:
    memory = profiler.profiler(replace(ROOT, ptrace_scope=scope, capabilities=held))[1]
    assert memory.state == state and bool(memory.remedy) == (state != "ok")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_what_is_tried_works_for_root_and_not_for_nobody() -> None:
    root = Path("/")
    known = profiler.facts(root, kernel.capabilities(root))
    assert known.bpf == "" and known.perf == "" and known.btf
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from unidle.doctor import kernel, profiler\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "known = profiler.facts(Path('/'), kernel.capabilities(Path('/')))\n"
        "print(known.bpf, known.perf, sep='\\n')\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ, cwd="/"
    )
    bpf, perf = ran.stdout.split("\n")[:2]
    assert "EPERM" in bpf
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    assert bool(perf) == (paranoid > 2), perf


def test_trying_leaves_no_descriptor_open() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    profiler.try_bpf()
    profiler.try_perf()
    assert set(Path("/proc/self/fd").iterdir()) == before
