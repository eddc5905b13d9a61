"""Agents that the chart installs: one `helm install` is enough, and what is wrong with them is shown.

All tests of this file use one release, in this order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import needs
from kube.cluster import Cluster
from kube.in_cluster import Release, released
from kube.test_kube_commands import job_file, stop
from kube.test_kube_rights import requests
from kube_cluster.user_space import agents
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]
NAMESPACE = "with-agents"


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    place = tmp_path_factory.mktemp("release")
    own_cluster.kubectl("create", "namespace", NAMESPACE)
    with released(own_cluster, NAMESPACE, place, agents=agents(), cpuDevices=2) as found:
        yield found
    own_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def check(site: Release) -> dict[str, str]:
    """What the doctor says of agents."""
    at = ("--kubeconfig", str(site.cluster.folder / "kubeconfig"), "--namespace", NAMESPACE)
    from e2e.commands import unidle

    found = json.loads(unidle("kube", "doctor", *at, "--json", env=site.env()).stdout)
    return next((one for one in found if one["name"] == "agents"), {"state": "", "detail": ""})


def joined(site: Release) -> None:
    wait_until(lambda: check(site)["state"] == "ok", 180, f"agents to join: {check(site)}, {site.log()}")


def address(site: Release) -> str:
    found = site.cluster.get("configmap", "unidle-hub", "-n", NAMESPACE)
    return str(found.get("data", {}).get("address", ""))


def test_one_install_brings_agents_that_join(site: Release) -> None:
    joined(site)
    assert check(site)["detail"] == "2 of 2 agents ready, all have joined"
    job = site.json("submit", job_file(site, "watched"))["job"]
    site.becomes(job, "running")
    assert "no agent runs" not in site.run("explain", job)
    stop(site, "watched")
    site.becomes(job, "succeeded", "cancelled")


def test_the_controller_may_write_that_one_object_and_agents_may_do_nothing(site: Release) -> None:
    def may(account: str, *words: str) -> bool:
        who = f"--as=system:serviceaccount:{NAMESPACE}:unidle-{account}"
        done = site.cluster.tried("auth", "can-i", *words, "-n", NAMESPACE, who)
        return done.stdout.strip() == "yes"

    assert may("controller", "patch", "configmaps/unidle-hub")
    assert not may("controller", "patch", "configmaps/another")
    assert not may("controller", "get", "configmaps/unidle-hub")
    assert not any(
        may("agent", *words) for words in (("get", "pods"), ("get", "configmaps"), ("get", "nodes"))
    )
    asked = [(right, allowed) for right, allowed, _ in requests(site) if right[1] == "configmaps"]
    assert {*asked} == {(("", "configmaps", "patch"), True)}


def test_agents_follow_a_controller_that_moved(site: Release) -> None:
    before = address(site)
    site.cluster.kubectl("delete", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=controller")
    site.ready()
    wait_until(lambda: address(site) not in ("", before), 60, "the new address")
    pods = site.cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=unidle-agent")["items"]
    joined(site)
    assert [one["status"]["containerStatuses"][0]["restartCount"] for one in pods] == [0, 0]


def test_without_agents_the_doctor_and_the_fleet_say_what_is_not_watched(site: Release) -> None:
    site.install("upgrade", cpuDevices=2)
    site.ready()
    wait_until(lambda: "none: no node is watched" in check(site)["detail"], 60, "no agents")
    assert check(site)["state"] == "limited"
    wait_until(
        lambda: "not watched: no agent of it is connected" in site.run("fleet"), 60, "a line of the fleet"
    )


def test_the_doctor_shows_why_agents_do_not_come(site: Release) -> None:
    level = "pod-security.kubernetes.io/enforce"
    site.cluster.kubectl("label", "namespace", NAMESPACE, f"{level}=baseline", "--overwrite")
    site.install("upgrade", agents=agents(), cpuDevices=2)
    wait_until(lambda: "violates PodSecurity" in check(site)["detail"], 90, f"the cause: {check(site)}")
    assert f"{level}=privileged" in str(check(site).get("remedy"))
    site.cluster.kubectl("label", "namespace", NAMESPACE, f"{level}=privileged", "--overwrite")
