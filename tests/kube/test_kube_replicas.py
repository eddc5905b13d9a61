"""The chart with two controllers: both pods are ready, one serves, and commands go on when that one is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import needs
from kube.cluster import Cluster
from kube.in_cluster import Release, helm
from kube_cluster.user_space import values
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]
NAMESPACE = "replicas"


def pods(release: Release) -> dict[str, str]:
    """Log of each controller's pod by its name, of those that are not being deleted."""
    found = release.cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=controller")[
        "items"
    ]
    names = [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]
    return {name: release.cluster.tried("logs", "-n", NAMESPACE, name).stdout for name in names}


def test_commands_go_on_when_the_controller_that_serves_is_killed(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    shared_cluster.make_namespace(NAMESPACE)
    release = Release(shared_cluster, NAMESPACE, tmp_path)
    # both on one node: the store of this test is a file of it
    controller = values(tmp_path)["controller"] | {
        "replicas": 2,
        "nodeSelector": {"kubernetes.io/hostname": "n1"},
    }
    try:
        release.install(shared={"install": False}, controller=controller)
        release.ready()
        assert release.json("list") == []
        logs = pods(release)
        [first] = [name for name, log in logs.items() if " s  serving " in log]
        [second] = [name for name, log in logs.items() if "standing by" in log]
        secret = release.cluster.get("secret", "unidle-hub", "-n", NAMESPACE)["data"]
        assert set(secret) == {"secret", "ca.pem", "ca.key"}
        kill = ("delete", "pod", "-n", NAMESPACE, first, "--grace-period=0", "--force")
        release.cluster.kubectl(*kill)
        assert release.json("list", "--all") == []
        assert release.json("fleet")["devices"] is not None
        wait_until(lambda: " s  serving " in pods(release)[second], 60, "the second one serves")
        wait_until(lambda: any("standing by" in log for name, log in pods(release).items() if name != second), 120, "a new one stands by")  # fmt: skip
        assert release.cluster.get("secret", "unidle-hub", "-n", NAMESPACE)["data"] == secret
        assert json.loads(release.run("list", "--json")) == []
    finally:
        helm(shared_cluster, "uninstall", "unidle", "-n", NAMESPACE, "--wait", check=False)
        shared_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
