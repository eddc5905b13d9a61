"""Parts of devices on hosts: real agents cut what their hosts have, real boxes bound their ranks, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import ask, unidle
from e2e.gangs import submit
from e2e.host_fleets import HOSTS, Fleet, opened
from engine_local.sharing import MPS_CONTROL
from nvml.playing import build, machine
from unidle.drill.lab import Lab
from unidle.engine.local.ranks.process_tree import with_environment
from waiting import wait_until

MIB = 1 << 20
WAITS = """
echo "began $RANK $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
while [ ! -e GO.$UNIDLE_JOB_NAME ]; do sleep 0.05; done
"""


def fleet_file(place: Path, *rules: dict[str, Any]) -> Path:
    file = place / "policies.yaml"
    file.write_text(json.dumps({"hosts": list(rules)}))
    return file


def waits(fleet: Fleet, name: str, **fields: Any) -> str:
    """A job that runs until :func:`go`."""
    script = WAITS.replace("$UNIDLE_JOB_NAME", name)
    return submit(
        fleet.store, fleet.place / f"{name}.json", script, name=name, workdir=str(fleet.place), **fields
    )


def go(fleet: Fleet, name: str) -> None:
    (fleet.place / f"GO.{name}").touch()


def runs(fleet: Fleet, job: str) -> None:
    def up() -> bool:
        found = fleet.job(job)
        assert found is None or not found.terminal, found
        return found is not None and found.live is not None and found.live.all_spawned

    wait_until(up, 120, f"{job} to run")


def ended(fleet: Fleet, job: str) -> None:
    wait_until(lambda: (found := fleet.job(job)) is not None and found.terminal, 120, f"the end of {job}")
    view = fleet.view().jobs[job]
    assert view.state == "succeeded", [attempt.why for attempt in view.attempts]


def parts(fleet: Fleet) -> dict[str, list[tuple[str, int]]]:
    """By device the parts that are cut now: job and share."""
    devices = fleet.view().fleet.devices()
    return {d.id: [(p.job, p.share_ppm) for p in d.cut.parts if p.job] for d in devices if d.cut is not None}


def bounds(fleet: Fleet, node: str, job: str) -> dict[int, float]:
    """The CPUs of each rank of its first attempt on a node, as its supervisor has them."""
    files = (fleet.place / node / "boxes" / job / "runs" / job / "1").glob("rank*/orders.json")
    return {int(file.parent.name[4:]): json.loads(file.read_text())["cpus"] for file in files}


def records(fleet: Fleet, node: str) -> list[str]:
    return sorted(path.name for path in (fleet.place / node / "slices" / ".slices").glob("*"))


def kill_everything(fleet: Fleet) -> None:
    """Kill controller, agents and boxes, and start them again: ranks go on, and hold what they held."""
    before, boxes = {node: records(fleet, node) for node in HOSTS}, fleet.boxes()
    assert any(before.values())
    assert fleet.up is not None
    for process in (fleet.up, *fleet.agents.values()):
        process.kill()
        process.wait()
    for pid in boxes:
        os.kill(pid, signal.SIGKILL)
    fleet.serve("--deadline", "2m")
    for node in HOSTS:
        fleet.join(node)
    wait_until(lambda: len(fleet.boxes()) == len(boxes), 60, "the boxes again")
    assert {node: records(fleet, node) for node in HOSTS} == before


@needs.root
@needs.own_mounts
def test_jobs_share_the_devices_of_hosts_whatever_is_killed_and_the_ledger_has_their_parts(
    tmp_path: Path,
) -> None:
    lab = Lab(("hub", *HOSTS))
    file = fleet_file(tmp_path, {"kind": "cpu", "share": {}})
    try:
        with opened(tmp_path, file=file, lab=lab, serve=("--deadline", "2m")) as fleet:
            wide = waits(fleet, "wide", ranks=2, device="cpu", share={"fraction": 0.5})
            runs(fleet, wide)
            small = waits(fleet, "small", device="cpu", share={"fraction": 0.25})
            runs(fleet, small)
            places = {job: fleet.view().jobs[job].attempts[0].places for job in (wide, small)}
            cpus = {node.id: node.cpus for node in fleet.view().fleet.nodes}
            for job, share in ((wide, 0.5), (small, 0.25)):
                for place in places[job]:
                    assert bounds(fleet, place.node, job)[place.rank] == pytest.approx(
                        cpus[place.node] * share
                    )
            held = sorted(share for of in parts(fleet).values() for _, share in of)
            assert held == [250_000, 500_000, 500_000]
            assert unidle("fleet", "--store", fleet.store).stdout.count("quota") == len(parts(fleet))
            kill_everything(fleet)
            go(fleet, "wide")
            ended(fleet, wide)
            assert [of for of in parts(fleet).values() if of] == [[(small, 250_000)]]
            go(fleet, "small")
            ended(fleet, small)
            wait_until(lambda: not any(records(fleet, node) for node in HOSTS), 60, "all to be freed")
            assert not parts(fleet)
            assert [len(fleet.view().jobs[job].attempts) for job in (wide, small)] == [1, 1]
            check = unidle("ledger", "--check", "--store", fleet.store)
            assert check.returncode == 0, check.stdout
    finally:
        lab.close()


@pytest.mark.slow
def test_devices_that_are_cut_as_declared_bound_ranks_on_hosts(tmp_path: Path) -> None:
    file = fleet_file(
        tmp_path,
        {"kind": "cpu", "labels": {"rack": "none"}, "share": {}},
        {"kind": "cpu", "slices_ppm": [250_000, 750_000]},
    )
    with opened(tmp_path, ("n1",), file=file) as fleet:
        job = waits(fleet, "job", ranks=2, device="cpu")
        runs(fleet, job)
        cpus = fleet.view().fleet.nodes[0].cpus
        places = fleet.view().jobs[job].attempts[0].places
        assert sorted(name for place in places for name in place.slices) == ["n1/0#0", "n1/0#1"]
        assert sorted(bounds(fleet, "n1", job).values()) == pytest.approx([cpus / 4, cpus * 3 / 4])
        go(fleet, "job")
        ended(fleet, job)
        wait_until(lambda: not records(fleet, "n1"), 60, "all to be freed")


# -- GPUs that are played, and a stand-in for NVIDIA's MPS program ------------------------------------


@contextmanager
def with_gpus(place: Path, *, mps: bool = True) -> Iterator[Fleet]:
    """One host with eight H100."""
    played = machine("h100x8", build(place / "library"), place)
    tools = place / "tools"
    tools.mkdir()
    if mps:
        (tools / "nvidia-cuda-mps-control").write_text(MPS_CONTROL)
        (tools / "nvidia-cuda-mps-control").chmod(0o755)
    env = {name: value for name, value in played.environ.items() if os.environ.get(name) != value}
    env |= {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(place), "PARTS_OF": str(place)}
    file = fleet_file(place, {"kind": "gpu", "share": {"modes": ["mig", "mps"]}})
    with opened(place, ("n1",), file=file, env={"n1": env}) as fleet:
        yield fleet
        wait_until(lambda: not daemons(place), 60, "the end of the daemons")


def daemons(place: Path) -> list[int]:
    """Stand-ins of the MPS daemon that run."""
    found = []
    for file in place.glob("unidle-mps-*/pipe/nvidia-cuda-mps-control.pid"):
        pid = int(file.read_text() or 0)
        found += [pid] if pid in with_environment(f"PARTS_OF={place}") else []
    return found


@pytest.mark.slow
def test_a_host_serves_parts_by_mps_and_ends_the_daemon_with_the_last_also_after_kills(
    tmp_path: Path,
) -> None:
    with with_gpus(tmp_path) as fleet:
        why = ask("fleet", "--store", fleet.store)["devices"][0]["share"]
        assert why["modes"] == ["mps"] and "MIG" in why["why_not"]["mig"]
        share = {"fraction": 0.3, "memory": "8GiB"}
        one, two = (waits(fleet, name, device="gpu", share=share) for name in ("one", "two"))
        runs(fleet, one)
        runs(fleet, two)
        said = unidle("logs", one, "--store", fleet.store).stdout
        assert " 30 0=8192M" in said and "GPU-" in said
        used = {
            place.slices[0].partition("#")[0]
            for job in (one, two)
            for place in fleet.view().jobs[job].attempts[0].places
        }
        assert len(daemons(tmp_path)) == len(used)
        fleet.agents["n1"].kill()
        fleet.agents["n1"].wait()
        go(fleet, "one")  # it ends while no agent is there
        ended(fleet, one)
        assert daemons(tmp_path)
        fleet.join("n1")
        wait_until(
            lambda: records(fleet, "n1") == [f"{two}.1.json"], 60, "what the first one held to be freed"
        )
        assert len(daemons(tmp_path)) == 1
        go(fleet, "two")
        ended(fleet, two)
        wait_until(lambda: not daemons(tmp_path) and not records(fleet, "n1"), 60, "all to be freed")


@pytest.mark.slow
def test_a_part_that_the_host_refuses_is_no_failure_and_the_job_waits_with_its_reason(tmp_path: Path) -> None:
    with with_gpus(tmp_path) as fleet:
        (tmp_path / "tools" / "nvidia-cuda-mps-control").write_text("#!/bin/sh\necho it is broken; exit 1\n")
        job = waits(fleet, "job", device="gpu", share={"fraction": 0.3, "mode": "mps"})
        wait_until(
            lambda: "it is broken" in unidle("explain", job, "--store", fleet.store).stdout, 60, "the reason"
        )
        found = fleet.job(job)
        assert found is not None and not found.terminal
        (tmp_path / "tools" / "nvidia-cuda-mps-control").write_text(MPS_CONTROL)
        unidle("cancel", job, "--store", fleet.store)
        wait_until(lambda: (now := fleet.job(job)) is not None and now.terminal, 60, "its end")
        wait_until(lambda: not records(fleet, "n1"), 60, "all to be freed")


@pytest.mark.slow
def test_without_mps_and_mig_a_host_has_one_clear_reason(tmp_path: Path) -> None:
    with with_gpus(tmp_path, mps=False) as fleet:
        share = ask("fleet", "--store", fleet.store)["devices"][0]["share"]
        assert share["modes"] == []
        assert share["why_not"]["mps"] == "nvidia-cuda-mps-control is not installed"
        assert share["why_not"]["mig"].startswith("MIG mode of n1/0 is off")
        refused = unidle("submit", fleet.place / "none.json", "--store", fleet.store)
        assert refused.returncode == 2
