"""A job that the fleet can never hold is refused when it is submitted, with the reason; what may start is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unidle as api
from e2e.commands import ask, unidle
from unidle.api.fleets import refuse_impossible
from unidle.errors import CannotRun, UnidleError
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping

FLEET = {
    "tiers": [{"id": "rack", "kind": "leaf"}],
    "nodes": [
        {"id": "n[1-2]", "cpus": 16, "memory": "64GiB", "labels": {"zone": "a"},
         "devices": {"count": 2, "kind": "gpu", "model": "H100", "memory": "80GiB"}},
    ],
    "queues": [{"name": "nlp", "limit": {"gpu": 3}}, {"name": "vision"}],
}  # fmt: skip
NEVER: dict[str, dict[str, object]] = {
    "there is no queue default that takes jobs; there are nlp, vision": {"queue": "default"},
    "needs 5 GPUs, and the fleet has 4": {"ranks": 5, "device": "gpu"},
    "nlp may use at most 3 gpu, and the job needs 4": {"ranks": 4, "queue": "nlp"},
    "of 4 GPUs, models leaves 0": {"models": {"include": ["A100"]}},
    "of 4 GPUs, node_labels leaves 0": {"node_labels": {"zone": "b"}},
    "the fleet has no tier of that kind": {"topology": {"require": "spine"}},
    "1 GPU and 20 cores each on one node": {"requests": {"cpus": 20}},
    "1 GPU and 65 GiB of memory each on one node": {"requests": {"memory": "65GiB"}},
    "3 GPUs each on one node": {"devices_per_rank": 3},
    "needs 1 part of a GPU": {"share": {"fraction": 0.5}},
    "and the empty fleet has room for 10": {"devices_per_rank": 0, "requests": {"cpus": 3}, "ranks": 11},
    "of 2 nodes, node_labels leaves 0": {"devices_per_rank": 0, "node_labels": {"zone": "b"}},
    "and the empty fleet has room for 32": {"device": "cpu", "ranks": 33},
}
MAY: list[dict[str, object]] = [
    {"ranks": 4},
    {"ranks": {"min": 2, "max": 8}},
    {"ranks": 3, "queue": "nlp"},
    {"devices_per_rank": 0, "requests": {"cpus": 3}, "ranks": 10, "queue": "nlp"},
    {"device": "cpu", "ranks": 32},
]


def refused(fields: dict[str, object]) -> UnidleError | None:
    spec = job_from_mapping({"command": ["x"], "queue": "vision", **fields}, "job", ".")
    try:
        refuse_impossible(spec, fleet_from_mapping(FLEET, "fleet"))
    except UnidleError as error:
        return error
    return None


@pytest.mark.parametrize("why", NEVER)
def test_what_no_state_of_the_fleet_can_hold_is_refused_with_the_reason(why: str) -> None:
    error = refused(NEVER[why])
    assert error is not None
    assert why in error.problem
    assert isinstance(error, CannotRun)
    assert error.remedy and ("use fewer ranks" in error.remedy) == (
        "queue" not in why and "at most" not in why
    )
    assert "--cpu-devices" not in error.remedy  # that is for a machine without a fleet file


@pytest.mark.parametrize("fields", MAY, ids=repr)
def test_what_some_state_of_the_fleet_can_hold_is_not_refused(fields: dict[str, object]) -> None:
    assert refused(fields) is None


def test_submit_refuses_by_the_fleet_of_the_last_controller_and_hold_keeps_the_job(tmp_path: Path) -> None:
    """Before the first controller nothing is known; then its fleet counts, also while none runs."""
    store, fleet = tmp_path / "s.db", tmp_path / "fleet.yaml"
    fleet.write_text(json.dumps(FLEET))
    first = unidle("submit", "--store", store, "--ranks", 99, "--", "true")
    assert first.returncode == 0
    assert "the fleet of this store is not known yet" in first.stderr
    assert unidle("submit", "--store", store, "--fleet", fleet, "--ranks", 99, "--", "true").returncode == 3
    assert unidle("up", "--store", store, "--cpu-devices", 2, "--until-idle").returncode == 0
    never = unidle("submit", "--store", store, "--ranks", 3, "--", "true")
    assert never.returncode == 3
    assert "needs 3 devices, and the fleet has 2" in never.stderr
    assert "`unidle up --cpu-devices 3` has as many, and `--hold` keeps the job" in never.stderr
    with pytest.raises(CannotRun, match="needs 3 devices"):
        api.submit(["true"], ranks=3, store=store)
    assert never.stdout == ""
    kept = unidle(
        "submit", "--store", store, "--hold", "--json", "--name", "held", "--ranks", 3, "--", "true"
    )
    assert kept.returncode == 0, kept.stderr
    assert json.loads(kept.stdout)["note"].startswith("held: needs 3 devices")
    assert [line["name"] for line in ask("list", "--store", store)] == ["true", "held"]
    assert unidle("up", "--store", store, "--cpu-devices", 2, "--until-idle").returncode == 0
    assert (
        "what would help: `unidle up --cpu-devices 3`" in unidle("explain", "held", "--store", store).stdout
    )
    api.submit(["true"], name="late", ranks=4, store=store, hold=True)
    assert unidle("up", "--store", store, "--cpu-devices", 4, "--until-idle").returncode == 0
    states = {line["name"]: line["state"] for line in ask("list", "--store", store)}
    assert states == {"true": "queued", "held": "succeeded", "late": "succeeded"}


def test_a_report_that_cannot_be_written_is_refused_before_the_job_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, problem in ((".", "is a directory"), ("file/report.html", "cannot be written")):
        refused = unidle("run", "--store", tmp_path / "s.db", "--report", tmp_path / name, "--", "true")
        assert refused.returncode == 2
        assert f"--report: {problem}" in refused.stderr
    assert not (tmp_path / "s.db").exists()
