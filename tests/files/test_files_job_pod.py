"""The `pod` section of the job file: what it becomes, and one clear error for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unidle.errors import BadInput
from unidle.files.job import job_from_mapping
from unidle.jobs import JobSpec
from unidle.jobs.pod import PodEnvSource, PodMount, PodToleration


def job(pod: dict[str, Any], **more: Any) -> JobSpec:
    return job_from_mapping({"command": ["a"], "pod": pod, **more}, "job.yaml", "/")


def test_a_job_without_the_section_asks_nothing_of_pods() -> None:
    assert job_from_mapping({"command": ["a"]}, "job.yaml", "/").pod is None


def test_all_of_the_section_is_in_the_job() -> None:
    found = job(
        {
            "image": "ghcr.io/x/train:1@sha256:00", "image_pull_secrets": ["reg"],
            "volumes": [
                {"mount": "/data/", "claim": "sets", "read_only": True, "sub_path": "a/b"},
                {"mount": "/dev/shm", "memory": "8GiB"}, {"mount": "/x", "empty": True},
            ],
            "env_from": [{"secret": "s", "prefix": "P_"}, {"config_map": "c"}],
            "tolerations": [{"key": "example.com/gpu", "effect": "NoSchedule"}, {}],
            "node_selector": {"zone": "a"}, "resources": {"rdma/hca": 2}, "labels": {"team": "x"},
            "annotations": {"note": "any text: at all"}, "run_as_user": 1000, "host_network": True,
            "fs_group": 2000, "capabilities": ["IPC_LOCK"],
        },
        node_labels={"kind": "b"},
    )  # fmt: skip
    assert found.pod is not None
    assert found.pod.volumes == (
        PodMount("/data", "claim", "sets", True, "a/b"),
        PodMount("/dev/shm", "memory", size_bytes=8 * 2**30),
        PodMount("/x", "empty"),
    )
    assert found.pod.env_from == (PodEnvSource("secret", "s", "P_"), PodEnvSource("config_map", "c"))
    assert found.pod.tolerations == (PodToleration("example.com/gpu", "", "NoSchedule"), PodToleration())
    assert found.where.labels == {"kind": "b", "zone": "a"}


def test_the_working_directory_of_a_pod_is_in_its_container(tmp_path: Path) -> None:
    assert job({"image": "x"}, workdir="/there/is/none/here").workdir == "/there/is/none/here"
    with pytest.raises(BadInput, match="there is no such directory"):
        job_from_mapping({"command": ["a"], "workdir": str(tmp_path / "none")}, "job.yaml", "/")


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"image": "no image"}, "pod.image.*the name of an image"),
        ({"volumes": [{"mount": "/a"}]}, r"pod.volumes\[0\]: does not say what it is"),
        ({"volumes": [{"mount": "/a", "secret": "s", "empty": True}]}, "has secret and empty"),
        ({"volumes": [{"mount": "a", "empty": True}]}, "an absolute path"),
        ({"volumes": [{"mount": "/a", "empty": True}, {"mount": "/a/", "empty": True}]}, "is mounted twice"),
        ({"volumes": [{"mount": "/unidle/x", "empty": True}]}, "is not possible as a mount"),
        ({"volumes": [{"mount": "/", "empty": True}]}, "is not possible as a mount"),
        ({"volumes": [{"mount": "/a", "memory": "0B"}]}, "is no size"),
        ({"volumes": [{"mount": "/a", "claim": "c", "sub_path": "../b"}]}, "stays inside"),
        ({"env_from": [{}]}, "needs one of secret and config_map"),
        ({"env_from": [{"secret": "a", "config_map": "b"}]}, "needs one of secret and config_map"),
        ({"labels": {"unidle.dev/job": "x"}}, "does not begin with unidle.dev/"),
        ({"labels": {"a": "no blank"}}, "63 letters"),
        ({"resources": {"rdma/hca": 0}}, "resources"),
        ({"service_account": "Not_a_name"}, "the name of an object of the cluster"),
        ({"tolerations": [{"effect": "Always"}]}, "effect"),
        ({"imagePullPolicy": "Always"}, "imagePullPolicy"),
    ],
)
def test_a_mistake_is_one_clear_error(pod: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        job(pod)
