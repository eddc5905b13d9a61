"""Links between GPUs, from a fleet file to what ranks see; the GPUs are declared, and no program here touches them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e import gangs
from e2e.commands import ask, unidle

FLEET = """
gpu_links:
  packages: {islands: [[0, 2], [1, 3]], link: XGMI4, between: XGMI1}
nodes:
  - {id: m1, devices: {count: 4, kind: gpu, vendor: amd, model: MI250X}, gpu_links: packages}
"""
SHOW = 'echo "CUDA=$CUDA_VISIBLE_DEVICES ROCR=$ROCR_VISIBLE_DEVICES HIP=$HIP_VISIBLE_DEVICES"'


def write(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({"command": ["sh", "-c", SHOW], "device": "gpu", **fields}))
    return path


def test_ranks_get_linked_gpus_and_see_them_by_their_vendors_variable(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet.yaml", tmp_path / "s.db"
    fleet.write_text(FLEET)
    job = write(tmp_path / "job.yaml", name="pair", ranks=2, devices_per_rank=2)
    done = unidle("run", job, "--fleet", fleet, "--store", store)
    assert done.returncode == 0, done.stderr
    job_id = gangs.wait_for_state(store, "pair", "succeeded").id
    seen = [unidle("logs", job_id, "--rank", rank, "--store", store).stdout.strip() for rank in range(2)]
    assert [line.rpartition("CUDA=")[2] for line in seen] == [" ROCR=0,2 HIP=0,1", " ROCR=1,3 HIP=0,1"]
    told = unidle("explain", job_id, "--store", store)
    assert "on m1 GPUs 0, 1, 2, 3: of 4 free, the best connected (XGMI1 or better)" in told.stdout


def test_a_snapshot_keeps_the_links_and_repeats_the_choice(tmp_path: Path) -> None:
    fleet, store, snapshot = tmp_path / "fleet.yaml", tmp_path / "s.db", tmp_path / "snapshot"
    fleet.write_text(FLEET)
    one, pair = write(tmp_path / "one.yaml"), write(tmp_path / "pair.yaml", devices_per_rank=2)
    forever = write(tmp_path / "forever.yaml", name="holder", command=["sleep", "600"])
    with gangs.running("run", forever, "--fleet", fleet, "--store", store):
        job = gangs.wait_for_state(store, "holder", "running")
        taken = unidle("fleet", "snapshot", "--store", store)
        snapshot.write_text(taken.stdout)
        live = ask("place", "--store", store, "--job", pair)
        ask("cancel", job.id, "--store", store)
    gangs.assert_nothing_runs(job.id)
    again = ask("place", "--snapshot", snapshot, "--job", pair)
    assert again == live
    assert [name.rpartition("/")[2] for name in again["ranks"][0]["devices"]] == ["1", "3"]
    assert "GPUs 1, 3: of 3 free, the best connected (XGMI4 or better)" in again["because"][0]
    single = ask("place", "--snapshot", snapshot, "--job", one)
    assert single["ranks"][0]["device"] == "m1/2"
    found = ask("fleet", "--store", store)
    assert {line["vendor"] for line in found["devices"]} == {"amd"}
    assert found["gpu_links"]["packages"]["ways"][0] == ["X", "XGMI1", "XGMI4", "XGMI1"]


def test_bad_links_are_bad_input(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.replace("XGMI4", "FAST"))
    done = unidle("fleet", "--fleet", fleet)
    assert done.returncode == 2
    assert "fleet.yaml:3: gpu_links.packages.link: must be one of NV1 and up" in done.stderr
