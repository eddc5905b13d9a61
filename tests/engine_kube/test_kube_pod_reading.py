"""What statuses of pods mean: who ended them, whether their ranks are dead, why they do not start."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unidle.engine.kube.pod_reading import disrupted, end_text, has_terminated, never_started, waits_because
from unidle.kube.objects import Pod


def pod(status: dict[str, Any] | None = None, *, deleted: bool = False, **state: Any) -> Pod:
    """A pod whose container ``ranks`` is in ``state``."""
    told: dict[str, Any] = {"phase": "Running", **(status or {})}
    if state:
        told["containerStatuses"] = [{"name": "ranks", "state": state}]
    meta = {"name": "gpt", "namespace": "jobs"} | (
        {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    )
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": "n1"}, "status": told}, Pod)


def target(reason: str, message: str = "") -> dict[str, Any]:
    return {
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]
    }


RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def test_a_pod_that_is_deleted_or_failed_by_others_is_not_dead_before_the_kubelet_says_so() -> None:
    assert not has_terminated(pod(deleted=True, **RUNNING))
    failed = pod({"phase": "Failed", **target("DeletionByPodGC")}, deleted=True, **RUNNING)
    assert not has_terminated(failed)
    assert not never_started(failed)
    assert has_terminated(pod({"phase": "Failed"}, **OOM))


def test_a_pod_that_is_over_and_had_no_process_never_started() -> None:
    assert never_started(pod({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough"}))
    assert not never_started(pod())
    assert never_started(pod({"phase": "Failed"}, waiting={"reason": "PodInitializing"}))


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (pod(deleted=True), "pod_deleted", "was deleted by others"),
        (pod(target("PreemptionByScheduler"), deleted=True), "pod_preempted", "higher priority"),
        (pod(target("DeletionByTaintManager"), deleted=True), "pod_tainted", "taint"),
        (pod(target("EvictionByEvictionAPI"), deleted=True), "pod_evicted", "kubectl drain"),
        (pod(target("TerminationByKubelet", "low on memory")), "pod_evicted", "low on memory"),
        (pod(target("SomethingNew", "of later")), "pod_disrupted", "SomethingNew: of later"),
        (
            pod({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}),
            "pod_evicted",
            "disk pressure",
        ),
        (pod({"phase": "Failed", "reason": "DeadlineExceeded"}), "pod_deadline", "activeDeadlineSeconds"),
    ],
)
def test_who_ends_a_pod_is_named(given: Pod, code: str, words: str) -> None:
    because = disrupted(given)
    assert because is not None
    assert because.code == code
    assert words in because.text
    assert "node n1" in because.text


def test_a_pod_that_ends_by_itself_is_not_disrupted() -> None:
    assert disrupted(pod(**RUNNING)) is None
    assert disrupted(pod({"phase": "Failed"}, **OOM)) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pod({"phase": "Failed"}, **OOM), "OOMKilled, exit code 137"),
        (pod({"phase": "Failed"}, terminated={"exitCode": 1, "reason": "Error"}), "has ended: exit code 1"),
        (
            pod({"phase": "Failed"}, terminated={"exitCode": 128, "reason": "StartError", "message": 'exec: "/unidle/python/ld.so": stat /unidle/python/ld.so: no such file or directory'}),
            "the image of --box-image is of an older release",
        ),
        (
            pod({"phase": "Failed"}, terminated={"exitCode": 128, "reason": "StartError", "message": 'exec: "python3": executable file not found in $PATH'}),
            "the image has no python3 (3.8 or newer); leave out `pod: {python: image}`",
        ),
        (pod({"phase": "Failed", "reason": "Evicted", "message": "low on disk"}), "Evicted: low on disk"),
        (
            pod({"phase": "Failed", "initContainerStatuses": [{"name": "unidle-box", "state": {"terminated": {"exitCode": 2}}}]}),
            "init container unidle-box: exit code 2",
        ),
    ],
)  # fmt: skip
def test_how_a_pod_ended_is_said(given: Pod, words: str) -> None:
    assert words in end_text(given)


def test_why_a_container_does_not_start_is_said_but_not_that_it_is_starting() -> None:
    assert waits_because(pod(waiting={"reason": "ContainerCreating"})) == ("", "")
    waits = waits_because(pod(waiting={"reason": "ImagePullBackOff", "message": "Back-off\n pulling x"}))
    assert waits == ("ImagePullBackOff", "container ranks: ImagePullBackOff: Back-off pulling x")
