"""Faults in logs that grow while `unidle up` runs: seen, laid on a device, told once, also over restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import UNIDLE, ask, unidle
from e2e.gangs import jobs_of, submit
from waiting import wait_until

LOST = (
    "[{at}] NVRM: Xid (PCI:0000:{bus}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)
NODES = {
    "nodes": [
        {
            "id": "n[1-2]",
            "devices": {"count": 2, "kind": "cpu"},
            "watch": {
                "kernel_log": "n[1-2].log",
                "pci": ["0000:3b:00.0", "0000:5e:00.0"],
                "nvml": "nvml-n[1-2].json",
            },
        }
    ]
}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(NODES))
    (tmp_path / "n1.log").write_text(LOST.format(at="    1.000000", bus="5e") + "\n")
    return path


@contextmanager
def up(fleet: Path, store: Path, *, ends: int = signal.SIGTERM) -> Iterator[subprocess.Popen[str]]:
    """A controller that serves the store while the block runs."""
    command = [*UNIDLE, "up", "--fleet", str(fleet), "--store", str(store), "--progress", "plain"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=fleet.parent
    ) as process:
        assert process.stderr is not None
        try:
            while "serving" not in (line := process.stderr.readline()):
                assert line, "the controller has ended"
            yield process
        finally:
            process.send_signal(ends)


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def nodes(store: Path) -> dict[str, dict[str, Any]]:
    return {one["node"]: one for one in ask("guard", "watch", "--store", store)}


def faults(store: Path, count: int) -> list[dict[str, Any]]:
    """The faults without a job, once there are so many."""

    def found() -> list[dict[str, Any]] | None:
        listed = [one for one in ask("guard", "incidents", "--store", store) if one["job"] is None]
        return listed if len(listed) >= count else None

    return list(wait_until(found, 60, f"{count} faults") or [])


def test_a_line_in_a_followed_log_becomes_a_fault_of_the_device_it_names(fleet: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    with up(fleet, store):
        append(tmp_path / "n1.log", LOST.format(at="  219.471050", bus="3b"))
        [fault] = faults(store, 1)
        assert (fault["node"], fault["device"], fault["kind"]) == ("n1", "n1/0", "gpu")
        assert fault["attempt"] is None and fault["resumed_ns"] is None
        assert 0 <= fault["verdict_ns"] - fault["signal_ns"] < 2_000_000_000
        seen = nodes(store)
        assert seen["n1"]["watched"] and seen["n1"]["last_fault"]["code"] == 79
        assert seen["n1"]["last_fault"]["action"] == "reboot_node"
        assert not seen["n2"]["watched"], "its log is not there"
        assert "n2.log: No such file" in seen["n2"]["not_watched"]
        table = unidle("fleet", "--store", store).stdout
        assert "n2: not watched:" in table and "n2.log" in table
        append(tmp_path / "n2.log", "the log is there now")
        wait_until(lambda: nodes(store)["n2"]["watched"], 60, "n2 to be watched")
    assert "no controller" in nodes(store)["n1"]["not_watched"]


@pytest.mark.slow
def test_a_controller_that_is_killed_leaves_no_fault_untold_and_none_told_twice(
    fleet: Path, tmp_path: Path
) -> None:
    store, log = tmp_path / "s.db", tmp_path / "n1.log"
    with up(fleet, store, ends=signal.SIGKILL):
        append(log, LOST.format(at="  100.000001", bus="3b"))
        faults(store, 1)
    append(log, LOST.format(at="  200.000001", bus="5e"))
    with up(fleet, store):
        both = faults(store, 2)
        assert [one["device"] for one in both] == ["n1/0", "n1/1"]
        (tmp_path / "nvml-n2.json").write_text(json.dumps({"n2/1": {"remap_failed": True}}))
        assert [one["device"] for one in faults(store, 3)] == ["n1/0", "n1/1", "n2/1"]


def test_a_running_job_that_is_hit_goes_on_elsewhere_and_has_the_fault_among_its_incidents(
    fleet: Path, tmp_path: Path
) -> None:
    store = tmp_path / "s.db"
    with up(fleet, store):
        submit(store, tmp_path / "job.json", "read -t 60 <> <(:); exit 1", ranks=1)

        def placed(attempt: int) -> str | None:
            job = jobs_of(store).get("job")
            runs = job is not None and job.state == "running" and len(job.attempts) == attempt
            return job.attempts[-1].places[0].slices[0] if job is not None and runs else None

        device = wait_until(lambda: placed(1), 60, "the job to run")
        node, bus = device[:2], {"0": "3b", "1": "5e"}[device[-1]]
        append(tmp_path / f"{node}.log", LOST.format(at="  300.000001", bus=bus))
        other = wait_until(lambda: placed(2), 60, "the job to run again")
        assert other[:2] != node, "a device that fell off the bus takes its node out"
        pid = jobs_of(store)["job"].attempts[1].ranks[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: jobs_of(store)["job"].terminal, 60, "the job to fail")
        assert len(jobs_of(store)["job"].attempts) == 2, (
            "the fault did not use up a retry, the job's own end did"
        )
    hit, own = ask("guard", "incidents", "--store", store)
    assert (hit["kind"], hit["rank"], hit["node"], hit["attempt"]) == ("gpu", 0, node, 1)
    assert hit["signal_ns"] <= hit["verdict_ns"]
    assert "fallen off the bus" in hit["because"]
    assert (own["kind"], own["attempt"]) == ("exit", 2)


@pytest.mark.slow
@needs.root
def test_a_link_that_flaps_under_one_controller_and_while_none_looks_is_one_fault(tmp_path: Path) -> None:
    store, fleet, name = tmp_path / "s.db", tmp_path / "fleet.json", f"unidle-f{os.getpid()}"
    node = {"id": "n1", "devices": {"kind": "cpu"}, "netns": name, "address": "10.9.8.7", "watch": {"kernel_log": "off"}}  # fmt: skip
    fleet.write_text(json.dumps({"nodes": [node]}))

    def ip(*words: str) -> None:
        subprocess.run(["ip", "-n", name, *words], check=True, capture_output=True)

    def flap(times: int) -> None:
        for _ in range(times):
            ip("link", "set", "d1", "down")
            ip("link", "set", "d1", "up")

    def counted() -> int:
        """Lost carriers as the controller has kept them."""
        try:
            told = json.loads((tmp_path / "s.db.d/watch.json").read_text())["n1 machine"]
            return int(json.loads(told)["growths"]["d0 carrier"]["count"])
        except (OSError, ValueError, KeyError):
            return -1

    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        ip("link", "add", "d0", "type", "veth", "peer", "name", "d1")
        ip("addr", "add", "10.9.8.7/24", "dev", "d0")
        ip("link", "set", "d0", "up")
        ip("link", "set", "d1", "up")
        with up(fleet, store, ends=signal.SIGKILL):
            before = wait_until(lambda: counted() + 1, 60, "the first look") - 1
            flap(3)
            wait_until(lambda: counted() == before + 3, 60, "three lost carriers")
        assert ask("guard", "incidents", "--store", store) == []
        flap(3)
        with up(fleet, store):
            [fault] = faults(store, 1)
            assert (fault["node"], fault["kind"]) == ("n1", "node")
            assert "the link went down 6 times in 24 h" in fault["because"]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def test_watching_one_plain_node_loads_no_numpy_and_no_rules_before_there_is_a_line() -> None:
    code = (
        "import sys, unidle.control.nodes.detectors, unidle.probe.log_watch, unidle.probe.machine_watch, unidle.probe.kernel_log;"
        "print(sorted({'numpy', 'unidle.guard.log.reader', 'unidle.guard.diagnosis'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("watch", "problem"),
    [
        ({"kernel_log": ""}, "watch.kernel_log"),
        ({"kernel_logs": "x"}, "watch.kernel_logs: unknown field"),
        ({"pci": ["3b:00"]}, "watch.pci[0]: must be a PCI address"),
        ({"pci": ["0000:3b:00.0", "0000:5e:00.0"]}, "watch.pci: 2 addresses for 1 device"),
        ({"kernel_log": "x[1-3].log"}, "watch.kernel_log: 3 members for 1 node"),
    ],
)
def test_a_wrong_watch_is_one_clear_error(tmp_path: Path, watch: dict[str, Any], problem: str) -> None:
    fleet = tmp_path / "fleet.json"
    fleet.write_text(json.dumps({"nodes": [{"id": "n1", "devices": {"kind": "cpu"}, "watch": watch}]}))
    done = unidle("fleet", "--fleet", fleet)
    assert done.returncode == 2
    assert problem in done.stderr
