"""The custom resources on a real API server: it takes and refuses jobs as `unidle submit` does; only `make test-kube` runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import needs
from kube.cluster import ROOT, Cluster
from unidle.errors import BadInput
from unidle.files.job import job_from_mapping
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
KINDS = ("jobs", "queues", "topologies", "fleetpolicies")

GOOD: list[dict[str, Any]] = [
    {"command": ["python", "train.py"]},
    {
        "command": ["a"],
        "name": "gpt-small",
        "ranks": 4,
        "devices_per_rank": 2,
        "queue": "research",
        "priority": -5,
    },
    {"command": ["a"], "ranks": {"min": 2, "max": 4}},
    {"command": ["a"], "env": {"OMP_NUM_THREADS": "1"}, "workdir": "/work", "user": "ada"},
    {"command": ["a"], "ranks": 4, "layout": {"dp": 4}, "topology": {"require": "leaf"}},
    {"command": ["a"], "checkpoint": {"path": "checkpoints", "memory": True}},
    {"command": ["a"], "restart": {"max": 3, "backoff_s": 1.5, "on": ["signal", 75]}},
    {"command": ["a"], "timeout_s": 86400, "estimate_s": 7200, "min_runtime_s": 60},
    {"command": ["a"], "limits": {"memory": "16Gi", "cpus": 2.5}, "requests": {"memory": 1024, "cpus": 1}},
    {
        "command": ["a"],
        "models": {"include": ["H100", "A100"]},
        "tolerate": ["spot"],
        "node_labels": {"zone": "a"},
    },
    {"command": ["a"], "share": {"fraction": 0.5}},
    {"command": ["a"], "name": None, "layout": None, "timeout_s": None},
]
BAD: list[dict[str, Any]] = [
    {},
    {"command": []},
    {"command": "python train.py"},
    {"command": ["a"], "name": "Not A Name"},
    {"command": ["a"], "name": "x" * 64},
    {"command": ["a"], "devices_per_rank": -1},
    {"command": ["a"], "devices_per_rank": 1.5},
    {"command": ["a"], "device": "tpu"},
    {"command": ["a"], "priority": "high"},
    {"command": ["a"], "preemption": "always"},
    {"command": ["a"], "comand": ["b"]},
    {"command": ["a"], "restart": {"max": -1}},
    {"command": ["a"], "restart": {"maximum": 1}},
    {"command": ["a"], "layout": {"tp": 0}},
    {"command": ["a"], "timeout_s": 0},
    {"command": ["a"], "env": {"A": 1}},
    {"command": ["a"], "workdir": "~/work"},
    {"command": ["a"], "user": "two words"},
    {"command": ["a"], "limits": {"memory": "lots"}},
    {"command": ["a"], "requests": {"cpus": -1}},
    {"command": ["a"], "checkpoint": {}},
]
LEFT_TO_THE_CONTROLLER: list[dict[str, Any]] = [
    {"command": ["a"], "ranks": 0},  # a number or a mapping: no type of a schema
    {"command": ["a"], "ranks": {"min": 4, "max": 2}},
    {"command": ["a"], "env": {"RANK": "1"}},  # names of a mapping with thousands of entries
    {"command": ["a"], "ranks": 4, "layout": {"dp": 3}},  # fields that contradict each other
]


@pytest.fixture(scope="module")
def resources(shared_cluster: Cluster) -> Iterator[Cluster]:
    file = ROOT / "deploy" / "kubernetes" / "crds.yaml"
    shared_cluster.kubectl("apply", "--server-side", "-f", str(file))
    for kind in KINDS:
        name = f"crd/{kind}.unidle.dev"
        shared_cluster.kubectl("wait", "--for=condition=Established", "--timeout=120s", name)
        wait_until(
            lambda kind=kind: shared_cluster.tried("get", f"{kind}.unidle.dev").returncode == 0, 60, kind
        )
    yield shared_cluster
    shared_cluster.kubectl("delete", "-f", str(file))


def resource(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "unidle.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def is_taken(cluster: Cluster, told: dict[str, Any]) -> bool:
    """Whether the server would make it; unknown fields are errors, as with ``kubectl create``."""
    done = cluster.tried("create", "--dry-run=server", "--validate=strict", "-f", "-", told=told)
    assert done.returncode == 0 or "invalid" in done.stderr.lower() or "unknown field" in done.stderr, (
        done.stderr
    )
    return done.returncode == 0


def is_submitted(job: dict[str, Any]) -> bool:
    try:
        job_from_mapping(job, "job", "/")
    except BadInput:
        return False
    return True


def test_the_definitions_have_no_violation(resources: Cluster) -> None:
    for kind in KINDS:
        status = resources.get("crd", f"{kind}.unidle.dev")["status"]
        conditions = {found["type"]: found["status"] for found in status["conditions"]}
        assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
        assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("job", GOOD, ids=json.dumps)
def test_a_job_that_can_be_submitted_is_taken(resources: Cluster, job: dict[str, Any]) -> None:
    assert is_submitted(job)
    assert is_taken(resources, resource("Job", "a", job, "default"))


@pytest.mark.parametrize("job", BAD, ids=json.dumps)
def test_a_job_that_cannot_be_submitted_is_refused(resources: Cluster, job: dict[str, Any]) -> None:
    assert not is_submitted(job)
    assert not is_taken(resources, resource("Job", "a", job, "default"))


@pytest.mark.parametrize("job", LEFT_TO_THE_CONTROLLER, ids=json.dumps)
def test_what_a_schema_cannot_say_is_left_to_the_controller(resources: Cluster, job: dict[str, Any]) -> None:
    assert not is_submitted(job)
    assert is_taken(resources, resource("Job", "a", job, "default"))


def test_defaults_are_those_of_the_file_and_a_job_cannot_be_changed(
    resources: Cluster, namespace: str
) -> None:
    resources.kubectl("create", "-f", "-", told=resource("Job", "a", {"command": ["a"]}, namespace))
    spec = resources.get("jobs.unidle.dev", "a", "-n", namespace)["spec"]
    assert (spec["ranks"], spec["queue"], spec["device"], spec["devices_per_rank"]) == (
        1,
        "default",
        "any",
        1,
    )
    assert is_submitted(spec)
    done = resources.tried(
        "patch", "jobs.unidle.dev", "a", "-n", namespace, "--type=merge", "-p", '{"spec":{"command":["b"]}}'
    )
    assert "a job cannot be changed once it was submitted" in done.stderr
    status = '{"status":{"state":"running","ranks":"1/1","step":7}}'
    resources.kubectl(
        "patch", "jobs.unidle.dev", "a", "-n", namespace, "--type=merge", "--subresource=status", "-p", status
    )
    printed = resources.kubectl("get", "jobs.unidle.dev", "-n", namespace)
    assert printed.splitlines()[0].split() == ["NAME", "STATE", "RANKS", "STEP", "QUEUE", "AGE"]
    assert printed.splitlines()[1].split()[:5] == ["a", "running", "1/1", "7", "default"]


@pytest.mark.parametrize(
    ("kind", "spec", "taken"),
    [
        ("Queue", {"weight": 2, "parent": "all", "guarantee": {"gpu": 8}}, True),
        ("Queue", {"weight": -1}, False),
        ("Queue", {"windows": [{"when": "sat,sun", "limit": {"gpu": 64}}]}, True),
        (
            "Topology",
            {"tiers": [{"id": "s", "kind": "site"}], "links": [{"a": "s", "b": "t", "gbps": 10}]},
            True,
        ),
        ("Topology", {"topology": {"labels": ["aiops.io/switch"]}}, True),
        ("Topology", {"tiers": [{"id": "s", "kind": "site"}], "topology": {"labels": ["a"]}}, False),
        ("Topology", {"links": [{"a": "s", "gbps": 10}]}, False),
        ("Topology", {"links": [{"tier": "leaf", "a": "s", "b": "t", "gbps": 10}]}, False),
        ("FleetPolicy", {"guard": {"preflight": "quick"}, "prices": {"H100": 2.5}, "currency": "EUR"}, True),
        ("FleetPolicy", {"currency": "euro"}, False),
        ("FleetPolicy", {"retention": {"age": "30d", "size": "20GB"}, "idle": {"after": "30m"}}, True),
        ("FleetPolicy", {"retention": {"age": "soon"}}, False),
    ],
    ids=json.dumps,
)
def test_parts_of_a_fleet_file(resources: Cluster, kind: str, spec: dict[str, Any], taken: bool) -> None:
    assert is_taken(resources, resource(kind, "a", spec)) is taken
