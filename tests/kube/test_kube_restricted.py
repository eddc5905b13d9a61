"""Jobs in a namespace that enforces the level `restricted` of Pod Security: ranks without any privilege, and refusals in the job's story."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import unidle
from kube.cluster import IMAGE, Cluster
from kube.kube_site import KubeSite, site_in
from kube.test_kube_jobs import go
from kube_cluster.user_space import paths, pod_section
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
NAMESPACE = "restricted"
USER = 65534
SHOWS = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; tr '\\0' ' ' < /proc/1/cmdline; echo; "
WAITS = 'import os, time\nwhile not os.path.exists("GO." + os.environ["UNIDLE_JOB"]): time.sleep(0.1)'


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeSite]:
    place = tmp_path_factory.mktemp("site")
    place.chmod(0o777)
    told = [made for name, path in claims(place).items() for made in (volume(name, path), claim(name))]
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    try:
        with site_in(own_cluster, NAMESPACE, place, told, **level) as found:
            yield found
    finally:
        volumes = [one["metadata"]["name"] for one in told if one["kind"] == "PersistentVolume"]
        own_cluster.tried("delete", "pv", "--wait=false", *volumes)


def claims(place: Path) -> dict[str, str]:
    """What pods have of this machine: a claim may be of anything, where a path of the host is refused."""
    return {f"machine-{number}": path for number, path in enumerate([*paths(), str(place)])}


def volume(name: str, path: str) -> dict[str, Any]:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "hostPath": {"path": path},
        "claimRef": {"namespace": NAMESPACE, "name": name},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"restricted-{name}"},
        "spec": spec,
    }


def claim(name: str) -> dict[str, Any]:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": f"restricted-{name}",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


def section(site: KubeSite, **more: object) -> dict[str, Any]:
    volumes = [{"mount": path, "claim": name} for name, path in claims(site.place).items()]
    return {"image": IMAGE, "image_pull_policy": "Never", "volumes": volumes, "run_as_user": USER, **more}


def test_ranks_run_without_any_privilege_and_restart_in_their_pods(site: KubeSite) -> None:
    script = f"{SHOWS} exec python3 -c '{WAITS}'"  # one process, which is the rank
    job = site.submit("plain", ["/bin/bash", "-c", script], 2, pod=section(site))
    site.attempt_runs(job)
    log = wait_until(
        lambda: (text := unidle("logs", job, "--store", site.store).stdout).count("Seccomp:") == 2 and text,
        60,
        "output of both ranks",
    )
    lines = [line.split("]")[-1].split() for line in log.splitlines()]
    for told in (
        [str(USER)],
        ["CapEff:", "0" * 16],
        ["CapBnd:", "0" * 16],
        ["NoNewPrivs:", "1"],
        ["Seccomp:", "2"],
    ):
        assert lines.count(told) == 2, (told, log)
    assert "/unidle/box --output" in log, log  # the first process of the pod is the box

    def uids() -> set[str]:
        found = site.cluster.get("pods", "-n", NAMESPACE, "-l", f"unidle.dev/job={job}")["items"]
        return {pod["metadata"]["uid"] for pod in found}

    before = uids()
    os.kill(max(site.rank_pids(job, 1)), signal.SIGKILL)
    site.attempt_runs(job, 2)
    assert uids() == before
    go(site, job)
    assert site.ends(job).state == "succeeded", site.explained(job)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"run_as_user": 0}, "violates PodSecurity"),
        ({"capabilities": ["NET_ADMIN"]}, "unrestricted capabilities"),
        ({"host_network": True}, "host namespaces"),
    ],
)
def test_what_the_namespace_refuses_is_in_the_story_of_the_job(
    site: KubeSite, more: dict[str, Any], words: str
) -> None:
    name = "-".join(more).replace("_", "-")
    job = site.submit(name, ["true"], 1, pod=section(site, **more), restart={"max": 0})
    assert site.ends(job).state == "failed"
    told = site.explained(job)
    assert words in told, told
    assert "restricted" in told


def test_an_image_whose_user_is_root_is_refused_with_the_remedy(site: KubeSite) -> None:
    wish = section(site)
    del wish["run_as_user"]
    job = site.submit("rooted", ["true"], 1, pod=wish, restart={"max": 0})
    assert site.ends(job).state == "failed"
    assert "run_as_user: 1000" in site.explained(job), site.explained(job)


def test_paths_of_a_node_are_refused(site: KubeSite) -> None:
    wish = pod_section(site.place, run_as_user=USER)
    job = site.submit("paths", ["true"], 1, pod=wish, restart={"max": 0})
    assert site.ends(job).state == "failed"
    assert "hostPath" in site.explained(job), site.explained(job)
