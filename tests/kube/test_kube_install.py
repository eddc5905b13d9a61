"""The chart on a real cluster: lint, install, upgrade, rollback, uninstall, and the rights that it gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from e2e.commands import unidle
from kube.cluster import ROOT
from kube.in_cluster import CHART, Release, helm
from kube_cluster import assets
from kube_cluster.user_space import values
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]


def test_the_chart_has_no_fault(release: Release) -> None:
    assert "0 chart(s) failed" in helm(release.cluster, "lint", "--strict", str(CHART)).stdout


def test_the_installation_in_one_file_is_that_of_the_chart() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "kube_install.py"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_api_server_accepts_the_installation_in_one_file(release: Release) -> None:
    release.cluster.kubectl("create", "namespace", "unidle-system")
    done = release.cluster.tried(
        "apply", "-f", str(ROOT / "deploy" / "kubernetes" / "install.yaml"), "--dry-run=server", "--server-side",
        "--force-conflicts",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    release.cluster.kubectl("delete", "namespace", "unidle-system", "--wait=false")


def test_a_release_is_upgraded_rolled_back_and_removed(release: Release, tmp_path: Path) -> None:
    cluster = release.cluster
    cluster.kubectl("create", "namespace", "second")
    second = Release(cluster, "second", tmp_path)
    second.install(shared={"install": False})
    second.ready()
    assert second.json("list") == []
    before = len(second.json("fleet")["devices"])  # GPUs that other tests gave to nodes of kwok
    second.install("upgrade", shared={"install": False}, extraArgs=["--cpu-devices=2"])
    second.ready()
    wait_until(lambda: len(second.json("fleet")["devices"]) > before, 60, "devices of the new value")
    helm(cluster, "rollback", "unidle", "1", "-n", "second", "--wait", "--timeout", "240s")
    second.ready()
    wait_until(lambda: len(second.json("fleet")["devices"]) == before, 60, "no such devices again")
    helm(cluster, "uninstall", "unidle", "-n", "second", "--wait")

    def left() -> list[str]:
        """Its pod ends after that of helm."""
        found = cluster.get("all,serviceaccounts,roles,rolebindings,networkpolicies", "-n", "second")["items"]
        return [one["metadata"]["name"] for one in found if "unidle" in one["metadata"]["name"]]

    wait_until(lambda: left() == [], 120, "nothing of the release is left")
    assert "second-unidle" not in cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert release.state("none") == ""  # the first one is as before
    cluster.kubectl("delete", "namespace", "second", "--wait=false")


def test_the_controller_has_no_other_rights(release: Release) -> None:
    def may(*words: str) -> bool:
        account = f"system:serviceaccount:{release.namespace}:{release.name}-controller"
        return release.cluster.tried("auth", "can-i", *words, f"--as={account}").stdout.strip() == "yes"

    for allowed in (
        ("list", "nodes"),
        ("create", "pods", "-n", release.namespace),
        ("create", "tokenreviews"),
    ):
        assert may(*allowed), allowed
    for refused in (
        ("get", "secrets", "-A"), ("create", "pods", "-n", "kube-system"), ("create", "pods", "--subresource=exec", "-n", release.namespace),
        ("delete", "nodes"), ("create", "clusterrolebindings"), ("approve", "certificatesigningrequests"),
        ("impersonate", "users"), ("delete", "jobs.unidle.dev", "-n", release.namespace),
    ):  # fmt: skip
        assert not may(*refused), refused


def test_commands_install_look_and_uninstall(release: Release, tmp_path: Path) -> None:
    import yaml

    cluster, config = release.cluster, str(release.cluster.folder / "kubeconfig")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").symlink_to(assets.helm())
    env = release.env(PATH=f"{programs}:{os.environ['PATH']}")
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(values(store, shared={"install": False})))
    at = ("--kubeconfig", config, "--namespace", "third")
    done = unidle("kube", "install", *at, "--values", str(given), env=env, timeout_s=300)
    assert done.returncode == 0, done.stderr
    done = unidle("kube", "doctor", *at, "--json", env=env)
    assert done.returncode == 0, done.stdout
    found = {check["name"]: check["state"] for check in json.loads(done.stdout)}
    assert found == dict.fromkeys(
        ("API server", "custom resources", "nodes", "controller", "rights"), "ok"
    ) | {"agents": "limited"}
    done = unidle("kube", "uninstall", *at, env=env, timeout_s=300)
    assert done.returncode == 0, done.stderr
    done = unidle("kube", "doctor", *at, "--json", env=env)
    assert done.returncode == 1
    assert {check["name"]: check["state"] for check in json.loads(done.stdout)}["controller"] == "missing"
    cluster.kubectl("delete", "namespace", "third", "--wait=false")
