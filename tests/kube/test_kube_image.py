"""unidle's image as scripts/kube_image.py makes it, on real nodes: controller, agents and boxes run from it alone.

All tests of this file use one release, in this order; only `make test-kube` runs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import needs
from e2e.commands import unidle
from kube.cluster import IMAGE, ROOT, Cluster, kube
from kube.in_cluster import CHART, Release, helm
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.root]
NAMESPACE = "own-image"
NAME = "registry.example/unidle:test"
MOST_BYTES = 120e6
WAITS = ["/kube-tool", "serve", "127.0.0.1:8123", "hello"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("image") / "unidle.tar"
    words = [sys.executable, "-P", str(ROOT / "scripts" / "kube_image.py"), str(out), "--name", NAME]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size < MOST_BYTES
    return out


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    done = kube("load", archive, "--dir", own_cluster.folder)
    assert done.returncode == 0, done.stderr
    place = tmp_path_factory.mktemp("release")
    values: dict[str, Any] = {
        "image": NAME,
        "imagePullPolicy": "Never",
        "deadline": "8s",
        "store": {"size": ""},
        "controller": {"resources": {"requests": {"cpu": "50m"}}},
        "agents": {"extraArgs": ["--kernel-log=off"]},
        "cpuDevices": 2,
        "shared": {"install": False},  # other releases of the run have what is of the whole cluster
    }
    (place / "values.yaml").write_text(yaml.safe_dump(values))
    own_cluster.kubectl("create", "namespace", NAMESPACE)
    found = Release(own_cluster, NAMESPACE, place)
    helm(own_cluster, "install", "unidle", str(CHART), "-n", NAMESPACE, "-f", str(place / "values.yaml"))
    try:
        found.ready()
        yield found
    finally:
        helm(own_cluster, "uninstall", "unidle", "-n", NAMESPACE, "--wait", check=False)
        own_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def submit(site: Release, name: str, command: list[str], ranks: int) -> str:
    job = {
        "name": name, "command": command, "ranks": ranks, "workdir": "/", "requests": {"cpus": 0.1},
        "pod": {"image": IMAGE, "image_pull_policy": "Never", "run_as_user": 1000},
    }  # fmt: skip
    path = site.place / f"{name}.json"
    path.write_text(json.dumps(job))
    return str(site.json("submit", path)["job"])


def test_the_archive_is_an_image_layout_of_oci(archive: Path) -> None:
    with tarfile.open(archive) as found:
        read = {name: json.load(found.extractfile(name)) for name in ("oci-layout", "index.json")}  # type: ignore[arg-type]
        [listed] = read["index.json"]["manifests"]
        names = found.getnames()
        assert f"blobs/{listed['digest'].replace(':', '/')}" in names
    assert read["oci-layout"] == {"imageLayoutVersion": "1.0.0"}
    assert listed["annotations"] == {
        "io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": "test",
    }  # fmt: skip


def test_controller_and_agents_run_from_it(site: Release) -> None:
    at = ("--kubeconfig", str(site.cluster.folder / "kubeconfig"), "--namespace", NAMESPACE)

    def agents() -> str:
        found = json.loads(unidle("kube", "doctor", *at, "--json", env=site.env()).stdout)
        return next((str(one["detail"]) for one in found if one["name"] == "agents"), "")

    wait_until(lambda: agents() == "2 of 2 agents ready, all have joined", 180, f"{agents()} {site.log()}")


def test_ranks_of_an_image_with_one_static_program_run_with_its_python(site: Release) -> None:
    job = submit(site, "prints", ["/kube-tool", "print", "hello"], 2)
    site.becomes(job, "succeeded")
    job = submit(site, "waits", WAITS, 1)
    site.becomes(job, "running")

    def inside() -> str:
        done = site.tried("exec", job, "--rank", "0", "--", "/kube-tool", "print", "inside")
        return done.stdout.strip() or done.stderr

    wait_until(lambda: inside() == "inside", 60, "a command in the rank's pod")
    site.run("cancel", job)
    site.becomes(job, "cancelled")
