"""CPU and memory cost the GPUs that would be without their share: where jobs go, what the ledger and explain show."""

from __future__ import annotations

from typing import Any

import pytest

from control.idle_worlds import IdleWorld
from control.remedy_worlds import RemedyWorld

GPUS = {"id": "g1", "devices": {"count": 8, "kind": "gpu", "model": "H100"}, "cpus": 64, "memory": "640GB"}
PLAIN = {"id": "p1", "cpus": 64, "memory": "640GB"}
LONG = {"work_s": 1000, "step_s": 1}


def cpu_job(cpus: float = 60, memory: str = "1GB") -> dict[str, Any]:
    return {"devices_per_rank": 0, "requests": {"cpus": cpus, "memory": memory}, "does": LONG}


def gpu_job(cpus: float, devices: int = 1) -> dict[str, Any]:
    return {"device": "gpu", "devices_per_rank": devices, "requests": {"cpus": cpus}, "does": LONG}


def world(nodes: list[dict[str, Any]], jobs: dict[str, dict[str, Any]]) -> RemedyWorld:
    return RemedyWorld({"nodes": nodes, "guard": {"preflight": "off"}}, jobs, {})


def run(found: IdleWorld, *jobs: str, until: float = 10) -> dict[str, str]:
    """Submit jobs one by one; the node of each."""
    for k, name in enumerate(jobs):
        found.until(1 + k)
        found.submit(name)
    found.until(until)
    return {
        name: found.job(name).attempts[0].places[0].node if found.job(name).attempts else "" for name in jobs
    }


@pytest.mark.parametrize("nodes", [[GPUS, PLAIN], [PLAIN, GPUS]])
def test_a_job_without_gpus_goes_to_the_node_without_gpus(nodes: list[dict[str, Any]]) -> None:
    assert run(world(nodes, {"job": cpu_job()}), "job") == {"job": "p1"}


@pytest.mark.parametrize("nodes", [[GPUS, PLAIN], [PLAIN, GPUS]])
def test_memory_counts_like_cores(nodes: list[dict[str, Any]]) -> None:
    assert run(world(nodes, {"job": cpu_job(1, "600GB")}), "job") == {"job": "p1"}


def test_a_job_of_one_gpu_and_many_cores_goes_where_they_strand_the_fewest() -> None:
    other = {**GPUS, "id": "g2"}
    jobs = {"seven": gpu_job(1, 7), "greedy": gpu_job(56)}
    where = run(world([GPUS, other], jobs), "seven", "greedy")
    assert where["greedy"] == where["seven"], "its last GPU, with the cores that nobody needs there"


def test_stranded_gpus_are_a_leaf_and_the_ledger_still_adds_up() -> None:
    """60 of 64 cores leave no GPU of the eight its share of 8 cores; the reason of the place says so."""
    found = world([GPUS], {"job": cpu_job()})
    run(found, "job", until=11)
    job = found.job("job")
    assert job.attempts[0].because.figures["strands"] == 8
    assert (
        "it leaves 8 free GPUs there without their share of cores or memory" in job.attempts[0].because.text
    )
    for k in range(8):
        assert found.device_s(f"g1/{k}") == {"no_demand": 1.0, "stranded": 10.0}


def test_what_is_stranded_ends_with_the_job_and_counts_only_what_is_missing() -> None:
    jobs = {"short": {**cpu_job(32), "does": {"work_s": 5, "step_s": 1}}, "gpu": gpu_job(8)}
    found = world([GPUS], jobs)
    run(found, "short", "gpu", until=20)
    # 24 cores are left for 7 free GPUs from second 2 on: three have their share, four do not
    spent = [found.device_s(f"g1/{k}") for k in range(8)]
    stranded = [round(one.get("stranded", 0)) for one in spent]
    assert stranded == [0, 0, 0, 0, 5, 5, 5, 5]
    assert all(round(sum(one.values())) == 20 for one in spent)


def test_gpus_are_not_stranded_where_nothing_is_declared_or_asked() -> None:
    bare = {"id": "g1", "devices": {"count": 2, "kind": "gpu"}}
    found = world([bare], {"job": {"device": "gpu", "does": LONG}})
    run(found, "job")
    assert "stranded" not in found.device_s("g1/1")
