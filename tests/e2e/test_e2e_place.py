"""`unidle place` on fleet files, stores and snapshots: the same decision, with reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e import gangs
from e2e.commands import ask, unidle

FLEET = """
tiers:
  - {id: site-a, kind: site}
  - {id: "leaf-[1-2]", kind: leaf, parent: site-a}
nodes:
  - {id: "a[1-2]", parent: leaf-1, devices: {count: 4, kind: gpu, model: H100}, cpus: 32}
  - {id: "b[1-2]", parent: leaf-2, devices: {count: 4, kind: gpu, model: A100}, taints: [spot]}
"""
FOREVER = "sleep 600"


def write(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({"command": ["train"], "device": "gpu", **fields}))
    return path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def test_a_job_gets_its_ranks_in_order_with_what_its_groups_cost(fleet: Path, tmp_path: Path) -> None:
    job = write(
        tmp_path / "job.yaml", ranks=8, layout={"tp": 4, "dp": 2}, topology={"groups": {"tp": "node"}}
    )
    answer = ask("place", "--fleet", fleet, "--job", job)
    assert answer["placed"] is True
    assert answer["blocked_by"] == []
    assert [rank["rank"] for rank in answer["ranks"]] == list(range(8))
    assert [rank["node"] for rank in answer["ranks"]] == ["a1"] * 4 + ["a2"] * 4
    assert answer["groups"]["tp"]["spread"]["node"] == 1
    assert answer["groups"]["dp"]["spread"]["node"] == 2
    assert {group["how"] for group in answer["groups"].values()} == {"modelled"}
    assert "leaf leaf-1" in answer["because"][0]


def test_what_is_in_the_way_is_named_with_figures(fleet: Path, tmp_path: Path) -> None:
    job = write(tmp_path / "job.yaml", ranks=9)
    answer = ask("place", "--fleet", fleet, "--job", job)
    assert (answer["placed"], answer["ranks"]) == (False, [])
    assert answer["blocked_by"][0]["code"] == "never_fits"
    assert "the fleet has 8 that it may use" in answer["blocked_by"][0]["text"]
    assert ask("place", "--fleet", fleet, "--job", write(job, ranks=9, tolerate=["spot"]))["placed"] is True
    text = unidle(
        "place", "--fleet", fleet, "--explain", "--job", write(job, ranks=8, topology={"require": "node"})
    )
    assert "the gang within one node: 2 of 4 have room, at most 4 of 8 ranks fit" in text.stdout


@pytest.mark.slow
def test_a_snapshot_of_a_running_store_repeats_the_decision_elsewhere(tmp_path: Path) -> None:
    store, snapshot = tmp_path / "s.db", tmp_path / "snapshot"
    file = gangs.write_job(tmp_path / "job.yaml", FOREVER, ranks=3)
    with gangs.running("run", file, "--cpu-devices", 4, "--store", store):
        job = gangs.wait_for_state(store, "job", "running")
        waits = gangs.submit(store, tmp_path / "next.yaml", FOREVER, ranks=2)
        taken = unidle("fleet", "snapshot", "--store", store)
        assert taken.returncode == 0, taken.stderr
        snapshot.write_text(taken.stdout)
        small = write(tmp_path / "small.yaml", ranks=1, device="cpu")
        live = ask("place", "--store", store, "--job", small)
        for name in (waits, job.id):
            ask("cancel", name, "--store", store)
    gangs.assert_nothing_runs(job.id)
    store.unlink()
    assert ask("place", "--snapshot", snapshot, "--job", small) == live
    assert [rank["device"].rpartition("/")[2] for rank in live["ranks"]] == ["3"]
    answer = ask("place", "--snapshot", snapshot, "--job", waits)
    assert answer["placed"] is False
    assert "needs 2 devices, 1 of 4 is free" in answer["blocked_by"][0]["text"]
    running = unidle("place", "--snapshot", snapshot, "--job", job.id)
    assert (running.returncode, "runs already" in running.stderr) == (2, True)


def test_a_snapshot_that_is_newer_torn_or_no_snapshot_is_one_clear_error(fleet: Path, tmp_path: Path) -> None:
    whole = '{"format":"unidle-snapshot","version":3,"time_ns":1}\n{"fleet":{},"health":{}}\n{"jobs":0}\n'
    job = write(tmp_path / "job.yaml")
    for text, says in {
        whole.replace('"version":3', '"version":4'): "line 1: version: a snapshot of a newer version (got 4)",
        whole.replace(
            '"version":3', '"version":1'
        ): "line 1: version: a snapshot of an older version (got 1)",
        whole.replace('"jobs":0', '"jobs":2'): "line 3: jobs: the snapshot has lost lines",
        whole.rpartition('{"jobs"')[0]: "the snapshot ends too early",
        whole.replace('"fleet":{}', '"fleet":{"nodes":3}'): "line 2: fleet.nodes: cannot be read",
        "hello\n": "line 1: cannot be read",
        "": "line 1: cannot be read",
        FLEET: "line 1: cannot be read",
    }.items():
        path = tmp_path / "snapshot"
        path.write_text(text)
        done = unidle("place", "--snapshot", path, "--job", job)
        assert done.returncode == 2, text
        (line,) = done.stderr.splitlines()
        assert says in line, line


def test_wishes_that_contradict_themselves_are_bad_input(fleet: Path, tmp_path: Path) -> None:
    for fields, says in (
        ({"topology": {"groups": {"tp": "node"}}}, "topology.groups: the parallel groups are not known"),
        ({"models": {"include": ["H100"], "exclude": ["H100"]}}, "both included and excluded"),
        ({"topology": {"requires": "leaf"}}, "the closest known field is require"),
        ({"requests": {"cpus": -1}}, "requests.cpus"),
    ):
        done = unidle("place", "--fleet", fleet, "--job", write(tmp_path / "job.yaml", **fields))
        assert done.returncode == 2
        assert says in done.stderr
