"""No probe holds up the check: real processes that hang, die, fail, flood, or that the kernel does not let go of."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import needs
from probe.check.recorded_node import RecordedNode
from unidle.errors import BadInput
from unidle.probe.check import (
    Absent,
    Check,
    Context,
    NodeReport,
    Outcome,
    ProbeResult,
    check_node,
    chosen,
    runner,
    shipped,
)
from unidle.probe.check.model import FunctionProbe, most
from waiting import wait_until


def probe(
    name: str, look: Callable[[Context], Outcome], needs: str = "", uses: str = "", seconds: float = 20
) -> FunctionProbe:
    return FunctionProbe(name, "quick", look, needs, frozenset(uses.split()), seconds)


def good(context: Context) -> Outcome:
    return ProbeResult((Check("good", True, 1, "", None, "well"),))


def hang(context: Context) -> Outcome:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()
    raise AssertionError


def die(context: Context) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def fail(context: Context) -> Outcome:
    raise ZeroDivisionError("in a probe\nsecond line")


def test_a_probe_that_hangs_is_stopped_and_the_others_go_on():
    report = check_node(Context(), [probe("stuck", hang, seconds=0.3), probe("good", good)])
    assert [(check.name, check.ok) for check in report.checks] == [("stuck", None), ("good", True)]
    assert "no answer within 0.3 s" in report.checks[0].because
    assert report.ok is None and report.exit_code == 3


def test_a_killed_probe_that_a_busy_machine_lets_run_late_is_not_stuck(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "_LET_GO_S", 0.0)
    [check] = check_node(Context(), [probe("stuck", hang, seconds=0.1)]).checks
    assert (check.ok, check.because) == (None, "no answer within 0.1 s; its process was stopped")


def test_a_probe_whose_process_leaves_another_one_has_answered():
    def leave(context: Context) -> Outcome:
        if os.fork() == 0:
            threading.Event().wait()
        return good(context)

    report = check_node(Context(), [probe("leaves", leave, seconds=120)])
    assert report.ok is True and report.seconds < 120


def test_what_a_probe_started_is_stopped_with_it(tmp_path: Path):
    def start(context: Context) -> Outcome:
        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pid.part").write_text(str(child.pid))
        (tmp_path / "pid.part").rename(tmp_path / "pid")
        return hang(context)

    check_node(Context(), [probe("starts", start, seconds=1.5)])
    pid = int((tmp_path / "pid").read_text())
    wait_until(
        lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def test_a_probe_that_dies_or_fails_could_not_tell():
    report = check_node(Context(), [probe("dies", die), probe("fails", fail), probe("good", good)])
    dies, fails, fine = report.checks
    assert dies.ok is None and "signal 9" in dies.because
    assert fails.ok is None and fails.because == "the probe failed: ZeroDivisionError: in a probe"
    assert fine.ok is True


def test_of_probes_that_share_a_process_those_before_the_hang_have_answered():
    shared = [
        probe(name, look, "lib", seconds=0.4)
        for name, look in (("one", good), ("two", hang), ("three", good))
    ]
    report = check_node(Context(), shared)
    assert [check.ok for check in report.checks] == [True, None, None]
    assert report.checks[2].because == "not run: two did not answer"
    shared[1] = probe("two", die, "lib")
    report = check_node(Context(), shared)
    assert [check.ok for check in report.checks] == [True, None, None]
    assert report.checks[2].because == "not run: two ended its process"


def test_an_answer_larger_than_a_pipe_comes_whole():
    def flood(context: Context) -> Outcome:
        return ProbeResult(tuple(Check(f"c{k}", True, k, "", None, "x" * 1000) for k in range(1000)))

    report = check_node(Context(), [probe("flood", flood)])
    assert [check.value for check in report.checks] == list(range(1000))


def test_probes_that_load_the_same_thing_do_not_run_at_the_same_time(tmp_path: Path):
    def alone(context: Context) -> Outcome:
        begin = time.monotonic_ns()
        (tmp_path / "here").mkdir()
        time.sleep(0.05)
        (tmp_path / "here").rmdir()
        return ProbeResult((Check("t", True, begin, "ns", None, ""),))

    report = check_node(Context(), [probe(f"p{k}", alone, uses="disk") for k in range(4)])
    assert [check.ok for check in report.checks] == [True] * 4, report.checks


def test_a_check_that_is_killed_leaves_no_process():
    code = (
        "import time, os\n"
        "from unidle.probe.check import *\n"
        "from unidle.probe.check.model import FunctionProbe\n"
        "def hang(c): print(os.getpid(), file=open(%r, 'w')); time.sleep(3600)\n"
        "check_node(Context(), [FunctionProbe('p', 'quick', hang, seconds=3600)])\n"
    )
    import tempfile

    with tempfile.NamedTemporaryFile("r") as told:
        started = subprocess.Popen([sys.executable, "-c", code % told.name])
        wait_until(lambda: Path(told.name).read_text().endswith("\n"))
        pid = int(Path(told.name).read_text())
        started.kill()
        started.wait()
        wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_driver_that_hangs_in_one_call_does_not_hide_what_it_told_before(tmp_path: Path):
    nvml = RecordedNode()
    nvml.hangs_in = "nvmlDeviceGetEccMode"
    context = Context(book=shipped(), nvml=nvml, root=tmp_path)
    report = check_node(context, chosen("quick", ["devices", "clocks", "ecc", "remap", "memory"]), 1.0)
    told = {check.name: check.ok for check in report.checks}
    assert told["devices"] is True and told["clocks"] is True
    assert told["ecc"] is None and told["remap"] is None
    assert report.ok is None


@needs.cgroups
def test_a_process_that_even_sigkill_does_not_end_is_left_behind_and_counts_against_the_node():
    """A frozen control group (version 1) keeps SIGKILL waiting, as a driver or disk that never answers does."""
    v1 = next((root for root in needs.cgroup_roots() if root.name == "freezer"), None)
    parent = v1 or needs.cgroup_roots()[0]
    group = parent / f"unidle-check-frozen-{os.getpid()}"
    group.mkdir()
    thaw = (group / "freezer.state", "THAWED") if v1 else (group / "cgroup.freeze", "0")

    def freeze(context: Context) -> Outcome:
        (group / "cgroup.procs").write_text("0")
        thaw[0].write_text("FROZEN" if v1 else "1")
        return good(context)

    try:
        report = check_node(Context(), [probe("frozen", freeze, seconds=1.0), probe("good", good)])
        frozen, fine = report.checks
        assert fine.ok is True
        if v1:
            assert frozen.ok is False and "cannot be killed" in frozen.because
            assert "state D" in frozen.because and report.exit_code == 1
        else:  # version 2 lets a frozen process be killed
            assert frozen.ok is None
    finally:
        pids = (group / "cgroup.procs").read_text().split()
        thaw[0].write_text(thaw[1])
        for pid in pids:
            os.waitpid(int(pid), 0)
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@needs.root
def test_a_directory_whose_server_is_dead_does_not_hang_the_check(tmp_path: Path):
    """FUSE whose server never answers stands for a hard-mounted NFS whose server is gone."""
    dead, fine = tmp_path / "dead", tmp_path / "fine"
    dead.mkdir()
    fine.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    assert libc.mount(b"dead", str(dead).encode(), b"fuse.dead", 0, options) == 0, os.strerror(
        ctypes.get_errno()
    )
    try:
        context = Context(book=shipped(), directories=(fine, dead))
        report = check_node(context, chosen("quick", ["storage", "memory"]), 4.0)
        told = {check.name: check for check in report.checks}
        assert told["storage"].ok is None and "no answer within 4 s" in told["storage"].because
        assert told["memory.free"].ok is True
        assert report.exit_code == 3
    finally:
        os.close(fuse)
        libc.umount2(str(dead).encode(), 2)


def test_the_node_is_fit_unfit_or_unknown_in_that_order_of_weight():
    def report(*told: bool | None) -> NodeReport:
        return NodeReport("n", tuple(Check("c", ok, None, "", None, "") for ok in told))

    assert (report(True, True).ok, report(True, True).exit_code) == (True, 0)
    assert (report(True, None).ok, report(True, None).exit_code) == (None, 3)
    assert (report(True, None, False).ok, report(None, False).exit_code) == (False, 1)
    assert report().ok is None  # nothing was looked at


def test_tiers_build_on_each_other_and_names_are_checked():
    names = {tier: [p.name for p in chosen(tier)] for tier in ("quick", "standard", "burn-in")}  # type: ignore[arg-type]
    assert set(names["quick"]) < set(names["standard"]) < set(names["burn-in"])
    assert [p.name for p in chosen("quick", ["gemm", "nic"])] == ["nic", "gemm"]
    with pytest.raises(BadInput, match="did you mean gemm"):
        chosen("quick", ["gem"])


def test_a_value_without_a_threshold_is_told_and_not_judged():
    assert most("x", 5.0, "s", None, "") == Check("x", True, 5.0, "s", None, "")
    assert most("x", None, "s", 1.0, "why").ok is None


def test_nothing_to_look_at_is_no_check():
    report = check_node(Context(), [probe("gone", lambda _: Absent("not here")), probe("good", good)])
    assert report.absent == (("gone", "not here"),) and report.ok is True
