"""The pod of a job on a node: names, identity, resources, and what the job file asks of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from unidle.engine.kube.manifest import (
    ATTEMPT,
    FINALIZER,
    JOB,
    RANKS,
    PodPlan,
    PodSettings,
    label_of,
    place_of,
    pod_name,
    pod_plans,
    ranges,
)
from unidle.engine.protocol import StartGang
from unidle.fleet import Device
from unidle.jobs import JobSpec, RankPlace, Requests
from unidle.jobs.pod import PodEnvSource, PodMount, PodToleration, PodWish
from unidle.kube.objects import Metadata, Pod, PodSpec

SETTINGS = PodSettings("jobs", "c0ffee", (("10.0.0.1", 7411),), "-----BEGIN", "unidle:1", "train:1")
DEVICES = {f"{n}/{k}": Device(f"{n}/{k}", n, k, "gpu", vendor="amd") for n in ("n1", "n2") for k in range(4)}


def gang(spec: JobSpec, *, attempt: int = 1, job: str = "gpt-abc") -> StartGang:
    """Rank 0 and 2 on n1, rank 1 on n2, with two GPUs each."""
    nodes = ("n1", "n2", "n1")
    places = tuple(
        RankPlace(r, n, tuple(f"{n}/{2 * (r // 2) + k}" for k in range(2))) for r, n in enumerate(nodes)
    )
    return StartGang(job, attempt, spec, places)


def plans(wish: PodWish | None = None, **more: object) -> dict[str, PodPlan]:
    spec = JobSpec(("train",), ranks=3, devices_per_rank=2, pod=wish, **more)  # type: ignore[arg-type]
    return {plan.node: plan for plan in pod_plans(SETTINGS, gang(spec), DEVICES)}


def test_a_pod_has_the_ranks_of_its_node_and_their_devices_and_requests() -> None:
    found = plans(requests=Requests(1.5, 2**30))
    body = found["n1"].body
    assert body["metadata"]["labels"][JOB] == "gpt-abc"
    assert {k: body["metadata"]["annotations"][k] for k in (ATTEMPT, RANKS)} == {ATTEMPT: "1", RANKS: "0,2"}
    assert body["metadata"]["finalizers"] == [FINALIZER]
    assert body["spec"]["nodeName"] == "n1"
    assert body["spec"]["restartPolicy"] == "Never"
    resources = body["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"amd.com/gpu": "4"}
    assert resources["requests"] == {"amd.com/gpu": "4", "cpu": "3000m", "memory": str(2 * 2**30)}
    assert found["n2"].body["spec"]["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "2"}


def test_nothing_secret_is_in_a_pod_and_its_token_is_for_the_hub_alone() -> None:
    spec = plans()["n1"].body["spec"]
    [env] = spec["containers"][0]["env"]
    told = json.loads(env["value"])
    assert set(told) == {"hub", "authority", "token_file", "node", "job"}
    assert spec["automountServiceAccountToken"] is False
    sources = [v["projected"]["sources"] for v in spec["volumes"] if "projected" in v]
    assert sources[0][0]["serviceAccountToken"]["audience"] == "unidle-hub"


def test_the_same_input_gives_the_same_pod_and_a_later_attempt_the_same_shape() -> None:
    assert plans()["n1"] == plans()["n1"]
    spec = JobSpec(("train",), ranks=3, devices_per_rank=2)
    first, second = (pod_plans(SETTINGS, gang(spec, attempt=k), DEVICES)[0] for k in (1, 2))
    assert (first.name, first.shape) == (second.name, second.shape)
    assert first.annotations != second.annotations
    other = replace(spec, requests=Requests(2))
    assert pod_plans(SETTINGS, gang(other), DEVICES)[0].shape != first.shape
    moved = replace(SETTINGS, hubs=(("10.0.0.2", 7411),))  # the specification of a pod does not change
    [pod] = [plan for plan in pod_plans(moved, gang(spec), DEVICES) if plan.node == first.node]
    assert (pod.name, pod.shape == first.shape) == (first.name, False)


@pytest.mark.parametrize("job", ["gpt-abc", "GPT_large.v2", "a" * 200, "日本語", "-", "x y"])
def test_names_and_labels_are_ones_that_a_cluster_takes(job: str) -> None:
    name = pod_name("c", job, "n1")
    assert len(name) <= 63
    assert name.replace("-", "").isalnum() and name == name.lower() and name.isascii()
    assert name != pod_name("c", job, "n2") != pod_name("d", job, "n2")
    label = label_of(job)
    assert len(label) <= 63 and label[0].isalnum() and label[-1].isalnum() and label.isascii()


def test_jobs_whose_names_look_alike_have_pods_and_labels_of_their_own() -> None:
    assert pod_name("c", "a b", "n") != pod_name("c", "a-b", "n")
    assert label_of("a b") != label_of("a-b")


def test_shared_memory_is_not_bounded_by_64_mib() -> None:
    spec = plans()["n1"].body["spec"]
    [name] = [m["name"] for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm"]
    assert {"name": name, "emptyDir": {"medium": "Memory"}} in spec["volumes"]


def test_a_pod_has_no_rights_but_those_that_the_job_requests() -> None:
    bare = plans()["n1"].body["spec"]
    assert bare["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    none = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert bare["containers"][0]["securityContext"] == none
    # the image with the box is not the job's, and its user need not be named in it
    assert bare["initContainers"][0]["securityContext"] == none | {"runAsUser": 65532}
    wish = PodWish(image="own:2", run_as_user=1000, fs_group=2000, capabilities=("IPC_LOCK",))
    spec = plans(wish)["n1"].body["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "fsGroup": 2000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert spec["initContainers"][0]["securityContext"] == none
    root = plans(PodWish(image="own:2", run_as_user=0))["n1"].body["spec"]["securityContext"]
    assert (root["runAsNonRoot"], root["runAsUser"]) == (False, 0)


def test_ranks_are_started_by_the_python_that_comes_along_unless_the_job_names_that_of_the_image() -> None:
    own, of_image = (
        plans(PodWish(image="a", python=which))["n1"].body["spec"]["containers"][0]["command"]  # type: ignore[arg-type]
        for which in ("own", "image")
    )
    assert own[:4] == [
        "/unidle/python/ld.so",
        "--library-path",
        "/unidle/python/lib",
        "/unidle/python/bin/python3",
    ]
    assert of_image[0] == "python3"
    assert own[4:] == of_image[1:] == ["-I", "/unidle/box.pyz", "/unidle/box", "--output"]


def test_what_the_job_file_asks_is_in_the_pod() -> None:
    wish = PodWish(
        image="own:2", image_pull_policy="Always", image_pull_secrets=("reg",),
        volumes=(
            PodMount("/data", "claim", "sets", read_only=True), PodMount("/also", "claim", "sets", sub_path="a"),
            PodMount("/dev/shm", "memory", size_bytes=2**30), PodMount("/tmp/x", "empty"),
        ),
        env_from=(PodEnvSource("secret", "keys", "K_"), PodEnvSource("config_map", "cfg")),
        service_account="trainer", tolerations=(PodToleration("gpu", "", "NoExecute", 60), PodToleration()),
        resources={"rdma/hca": 1}, labels={"team": "a"}, priority_class="high", host_network=True,
    )  # fmt: skip
    spec = plans(wish)["n1"].body["spec"]
    main = spec["containers"][0]
    assert (main["image"], main["imagePullPolicy"]) == ("own:2", "Always")
    assert spec["imagePullSecrets"] == [{"name": "reg"}]
    claims = [v for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert len(claims) == 1
    mounts = {m["mountPath"]: m for m in main["volumeMounts"]}
    assert mounts["/data"] == {"name": claims[0]["name"], "mountPath": "/data", "readOnly": True}
    assert mounts["/also"]["subPath"] == "a"
    assert {"emptyDir": {"medium": "Memory", "sizeLimit": str(2**30)}}.items() <= next(
        v for v in spec["volumes"] if v["name"] == mounts["/dev/shm"]["name"]
    ).items()
    assert sum(m["mountPath"] == "/dev/shm" for m in main["volumeMounts"]) == 1
    assert main["envFrom"] == [
        {"secretRef": {"name": "keys"}, "prefix": "K_"},
        {"configMapRef": {"name": "cfg"}},
    ]
    assert spec["tolerations"] == [
        {"operator": "Exists", "key": "gpu", "effect": "NoExecute", "tolerationSeconds": 60},
        {"operator": "Exists"},
    ]
    assert main["resources"]["limits"] == {"amd.com/gpu": "4", "rdma/hca": "2"}
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("trainer", "high")
    assert spec["hostNetwork"] is True


def test_only_a_pod_with_the_right_name_on_the_right_node_is_an_own_one() -> None:
    meta = plans()["n1"].body["metadata"]
    own = Pod(
        Metadata(meta["name"], "jobs", labels=meta["labels"], annotations=meta["annotations"]),
        PodSpec(node_name="n1"),
    )
    assert place_of(SETTINGS, own) == ("n1", "gpt-abc")
    assert place_of(replace(SETTINGS, controller="other"), own) is None
    assert place_of(replace(SETTINGS, namespace="other"), own) is None
    for spec in (PodSpec(node_name="n2"), PodSpec()):
        assert place_of(SETTINGS, Pod(own.metadata, spec)) is None


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2,5"), ([7, 6, 1], "1,6-7")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
