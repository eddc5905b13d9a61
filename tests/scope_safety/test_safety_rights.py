"""What is refused here costs a tier and not the look: which one is left, and what it misses, is said."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import UNIDLE
from scope_native.programs import MIXED, running

pytestmark = needs.ebpf
REFUSED = Path(__file__).with_name("refused.py")
BPF, PERF = {"x86_64": ("321", "298"), "aarch64": ("280", "241")}[platform.machine()]
WITHOUT_RIGHTS = "-bpf,-perfmon,-sys_admin"


def refusing(*calls: str) -> list[str]:
    return [sys.executable, str(REFUSED), ",".join(calls)]


def looked(
    before: list[str], pid: int, *more: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    command = [*before, *UNIDLE, "profile", str(pid), "--seconds", "1", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.mark.parametrize(
    ("before", "tier", "says"),
    [
        (refusing(BPF), "T1", ["tier T0 did not start", "CAP_BPF"]),
        (refusing(PERF), "T2", ["tier T1 did not start", "perf events are refused"]),
        (refusing(BPF, PERF), "T2", ["tier T0 did not start", "tier T1 did not start"]),
        (
            ["setpriv", f"--bounding-set={WITHOUT_RIGHTS}", f"--inh-caps={WITHOUT_RIGHTS}"],
            "T1",
            ["tier T0 did not start", "CAP_BPF"],
        ),
    ],
    ids=["no bpf", "no perf events", "neither", "root without capabilities"],
)
def test_the_best_tier_that_is_left_looks_and_says_why_it_is_not_a_better_one(
    before: list[str], tier: str, says: list[str]
) -> None:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if tier == "T1" and paranoid > 2 and "setpriv" in before:
        tier = "T2"
    with running(MIXED) as process:
        done, told = looked(before, process.pid)
    assert done.returncode == 0, done.stderr
    assert told["tier"] == tier
    misses = " ".join(told["misses"])
    for text in (*says, "no counts of operators"):
        assert text in misses
    assert told["quality"]["samples"] > 0
    assert sum(told["budget"].values()) == pytest.approx(100, abs=0.5)
    assert any(line["function"] == "spin" for line in told["lines"])


def test_a_refusal_blames_the_setting_only_where_it_is_the_cause() -> None:
    refuses = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) > 2
    with running(MIXED) as process:
        _, told = looked(refusing(BPF, PERF), process.pid)
    (why,) = [line for line in told["misses"] if line.startswith("tier T1")]
    assert ("2 or less allows" in why) == refuses
    assert ("seccomp" in why) != refuses


@pytest.mark.parametrize("tier", ["T0", "T1"])
def test_a_tier_that_is_asked_for_and_refused_is_one_line_and_exit_code_3(tier: str) -> None:
    with running(MIXED) as process:
        command = [*refusing(BPF, PERF), *UNIDLE, "profile", str(process.pid), "--tier", tier]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"tier {tier} did not start" in done.stderr


def test_the_doctor_says_which_tier_is_left_and_what_the_next_one_needs() -> None:
    done = subprocess.run(
        [*refusing(BPF, PERF), *UNIDLE, "doctor"], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    (at,) = [n for n, line in enumerate(lines) if " profiler " in line]
    assert (
        "T2" in lines[at] and "bpf() is refused" in lines[at] and "perf_event_open() is refused" in lines[at]
    )
    assert "--cap-add=BPF" in lines[at + 1]
