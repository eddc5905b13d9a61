"""Jobs as objects of a cluster: applied, shown, edited and deleted with kubectl."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import needs
from kube.in_cluster import Release
from kube.test_kube_commands import job_file
from kube_cluster.user_space import pod_section
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]

KIND = "jobs.unidle.dev"
WAITS = "import os, time\nwhile not os.path.exists(os.environ['STOP']):\n    time.sleep(0.05)\n"


def job_object(release: Release, name: str, ranks: int = 2, **more: Any) -> dict[str, Any]:
    spec = {
        "command": [sys.executable, "-c", WAITS],
        "workdir": str(release.place),
        "ranks": ranks,
        "devices_per_rank": 0,
        "requests": {"cpus": 0.1},
        "env": {"STOP": str(release.place / f"{name}.stop")},
        "grace_s": 1,
        "pod": pod_section(release.place),
        **more,
    }
    meta = {"name": name, "namespace": release.namespace}
    return {"apiVersion": "unidle.dev/v1alpha1", "kind": "Job", "metadata": meta, "spec": spec}


def apply(release: Release, told: dict[str, Any]) -> None:
    release.cluster.kubectl("apply", "-f", "-", told=told)


def status(release: Release, name: str) -> dict[str, Any]:
    found: dict[str, Any] = release.cluster.get(KIND, name, "-n", release.namespace).get("status", {})
    return found


def shows(release: Release, name: str, **wanted: Any) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = status(release, name)
        return found if all(found.get(key) == value for key, value in wanted.items()) else None

    found = wait_until(look, 180, f"{name} shows {wanted}, and not {status(release, name)}")
    assert found is not None
    return found


def reasons(release: Release, name: str) -> set[str]:
    found = release.cluster.get("events.events.k8s.io", "-n", release.namespace)["items"]
    return {event["reason"] for event in found if event["regarding"]["name"] == name}


def test_an_applied_object_is_a_job_that_runs_to_its_end(release: Release) -> None:
    apply(release, job_object(release, "plain"))
    found = shows(release, "plain", state="running", ranks="2/2")
    job = found["job"]
    assert release.json("show", job)["identity"]
    printed = release.cluster.kubectl("get", KIND, "plain", "-n", release.namespace)
    assert printed.split()[:5] == ["NAME", "STATE", "RANKS", "STEP", "QUEUE"]
    assert printed.splitlines()[1].split()[:3] == ["plain", "running", "2/2"]
    (release.place / "plain.stop").touch()
    release.cluster.kubectl(
        "wait", f"{KIND}/plain", "-n", release.namespace, "--for=condition=Complete", "--timeout=120s"
    )
    wait_until(lambda: {"Submitted", "Placed", "Succeeded"} <= reasons(release, "plain"), 60, "its Events")
    assert "Succeeded" in release.cluster.kubectl("describe", KIND, "plain", "-n", release.namespace)
    release.cluster.kubectl("delete", KIND, "plain", "-n", release.namespace)
    assert release.state(job) == "succeeded"  # the log outlives the object


def test_a_deleted_object_is_a_cancelled_job(release: Release) -> None:
    apply(release, job_object(release, "deleted"))
    job = shows(release, "deleted", state="running")["job"]
    release.cluster.kubectl("delete", KIND, "deleted", "-n", release.namespace, "--timeout=30s")
    release.becomes(job, "cancelled")
    apply(release, job_object(release, "deleted", ranks=1))
    assert shows(release, "deleted", state="running")["job"] != job
    release.cluster.kubectl("delete", KIND, "deleted", "-n", release.namespace)


def test_the_same_object_again_is_the_same_job(release: Release) -> None:
    told = job_object(release, "again", ranks=1)
    apply(release, told)
    job = shows(release, "again", state="running")["job"]
    apply(release, told | {"metadata": {**told["metadata"], "labels": {"team": "a"}}})
    shows(release, "again", job=job, state="running", attempt=1)
    release.cluster.kubectl("delete", KIND, "again", "-n", release.namespace)
    release.becomes(job, "cancelled")


def test_a_job_that_was_submitted_cannot_be_changed(release: Release) -> None:
    apply(release, job_object(release, "fixed", ranks=1))
    done = release.cluster.tried("apply", "-f", "-", told=job_object(release, "fixed", ranks=2))
    assert done.returncode != 0
    assert "delete it, and submit another one" in done.stderr
    release.cluster.kubectl("delete", KIND, "fixed", "-n", release.namespace)


def test_a_status_that_was_changed_by_hand_is_written_again(release: Release) -> None:
    apply(release, job_object(release, "edited", ranks=1))
    job = shows(release, "edited", state="running")["job"]
    patch = json.dumps({"status": {"state": "succeeded", "job": "other", "conditions": []}})
    release.cluster.kubectl(
        "patch", KIND, "edited", "-n", release.namespace, "--subresource=status", "--type=merge", "-p", patch
    )
    found = shows(release, "edited", state="running", job=job)
    assert found["conditions"][0]["type"] == "Accepted"
    release.cluster.kubectl("delete", KIND, "edited", "-n", release.namespace)


def test_a_job_that_cannot_be_read_says_why(release: Release) -> None:
    apply(release, job_object(release, "wrong", ranks=2, roles={"a": "0-5"}))
    found = shows(release, "wrong", state="refused")
    assert "roles" in found["message"]
    [accepted] = found["conditions"]
    assert (accepted["type"], accepted["status"], accepted["reason"]) == ("Accepted", "False", "Invalid")
    wait_until(lambda: "Invalid" in reasons(release, "wrong"), 60, "its Event")
    release.cluster.kubectl("delete", KIND, "wrong", "-n", release.namespace)


def test_a_job_that_can_never_start_has_the_words_of_submit(release: Release) -> None:
    asks = {"ranks": 64, "devices_per_rank": 1, "device": "gpu"}
    done = release.tried("submit", job_file(release, "too-large", **asks))
    assert done.returncode == 3, done.stderr
    apply(release, job_object(release, "too-large", **asks))
    found = shows(release, "too-large", state="queued")
    assert "can never start here" in found["message"]
    assert found["message"] in done.stderr

    def warned() -> bool:
        events = release.cluster.get("events.events.k8s.io", "-n", release.namespace)["items"]
        mine = [event for event in events if event["regarding"]["name"] == "too-large"]
        return any((event["type"], event["note"]) == ("Warning", found["message"]) for event in mine)

    wait_until(warned, 60, "its Event")
    release.cluster.kubectl("delete", KIND, "too-large", "-n", release.namespace)


def test_a_field_that_is_wrong_is_refused_by_the_server(release: Release) -> None:
    done = release.cluster.tried("apply", "-f", "-", told=job_object(release, "bad", devices_per_rank=-1))
    assert done.returncode != 0
    assert "spec.devices_per_rank" in done.stderr


def test_what_was_deleted_and_applied_without_a_controller_is_seen_at_its_start(release: Release) -> None:
    apply(release, job_object(release, "before"))
    job = shows(release, "before", state="running")["job"]
    apply(release, job_object(release, "stays", ranks=1))
    stays = shows(release, "stays", state="running")["job"]
    deployment = f"deployment/{release.name}-controller"
    release.cluster.kubectl("scale", "-n", release.namespace, deployment, "--replicas=0")
    wait_until(lambda: not release.cluster.get("pods", "-n", release.namespace, "-l", "app.kubernetes.io/component=controller")["items"], 120, "no controller")  # fmt: skip
    release.cluster.kubectl("delete", KIND, "before", "-n", release.namespace, "--timeout=30s")
    apply(release, job_object(release, "meanwhile", ranks=1))
    release.cluster.kubectl("scale", "-n", release.namespace, deployment, "--replicas=1")
    release.ready()
    release.becomes(job, "cancelled")
    shows(release, "meanwhile", state="running")
    shows(release, "stays", job=stays)
    for name in ("meanwhile", "stays"):
        release.cluster.kubectl("delete", KIND, name, "-n", release.namespace)


def test_a_namespace_with_jobs_goes_without_a_controller(release: Release, tmp_path: Path) -> None:
    release.cluster.kubectl("create", "namespace", "no-controller")
    told = job_object(release, "orphan")
    told["metadata"]["namespace"] = "no-controller"
    apply(release, told)
    release.cluster.kubectl("delete", "namespace", "no-controller", "--timeout=60s")
