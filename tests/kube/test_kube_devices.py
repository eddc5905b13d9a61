"""Devices that a real kubelet gives out, of a real device plugin: which pods have which is known, and counted so.

All tests of this file use one controller, in this order; only `make test-kube` runs them. The plugin is on n1: a kubelet has a
resource for minutes after its plugin has gone, and other tests give n2 GPUs by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import ask, unidle
from kube.cluster import Cluster, pod
from kube.kube_agents import agents_output, deploy_agents
from kube.kube_site import KubeSite
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
GPU = "nvidia.com/gpu"
IDS = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
SHOWS = 'echo "$CUDA_VISIBLE_DEVICES $GIVEN_DEVICES" > shown.new$RANK; mv shown.new$RANK shown$RANK; while [ ! -e go ]; do sleep 0.1; done'


class Plugin:
    """Runs next to the kubelet of n1. ``tell``: which devices are there, and which are given first."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.file = place / "devices.json"
        self.tell(IDS, [])
        folder = cluster.layout.node("n1") / "var/lib/kubelet/device-plugins"
        script = Path(__file__).with_name("device_plugin.py")
        words = [sys.executable, "-P", str(script), str(folder), GPU, str(self.file)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"registered\n"

    def tell(self, devices: list[str], prefer: list[str]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"devices": devices, "prefer": prefer}))
        new.replace(self.file)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def plugin(own_cluster: Cluster, place: Path) -> Iterator[Plugin]:
    found = Plugin(own_cluster, place)
    try:
        wait_until(lambda: allocatable(own_cluster) == "4", 60, "the devices of n1")
        yield found
    finally:
        found.end()
        gone = '{"status": {"capacity": {"nvidia.com/gpu": null}}}'
        own_cluster.kubectl("patch", "node", "n1", "--subresource=status", "--type=merge", "-p", gone)


@pytest.fixture(scope="module")
def site(own_cluster: Cluster, plugin: Plugin, place: Path) -> Iterator[KubeSite]:
    found = KubeSite(own_cluster, place)
    try:
        found.serve("--cpu-devices", 1)
        deploy_agents(found, ["n1", "n2"])
        yield found
    finally:
        found.close()
        own_cluster.tried("delete", "daemonset,configmap,serviceaccount", "unidle-agent", "unidle-hub")
        own_cluster.tried("delete", "pods", "-l", "of=others", "--grace-period=0", "--force", "--wait=true")


def allocatable(cluster: Cluster) -> str:
    return str(cluster.get("node", "n1")["status"]["allocatable"].get(GPU))


def other(site: KubeSite, name: str, gpus: int) -> None:
    made = pod(name, "pause", container={"resources": {"limits": {GPU: str(gpus)}}}, node="n1")
    made["metadata"]["labels"] = {"of": "others"}
    site.cluster.kubectl("create", "-f", "-", told=made)


def others(site: KubeSite) -> dict[str, Any]:
    return {line["pod"]: line for line in ask("list", "--others", "--store", site.store)}


def gang(site: KubeSite, name: str, ranks: int) -> str:
    return site.submit(
        name, ["/bin/sh", "-c", SHOWS], ranks, devices_per_rank=1, device="gpu", workdir=str(site.place)
    )


def shown(site: KubeSite, rank: int) -> list[str]:
    file = site.place / f"shown{rank}"
    wait_until(file.exists, 120, f"rank {rank} to start; {site.errors()} {agents_output(site)}")
    return file.read_text().split()


def test_devices_have_the_ids_of_their_plugin(site: KubeSite) -> None:
    def uuids() -> list[str]:
        return [d.uuid for node in site.view().fleet.nodes if node.id == "n1" for d in node.devices]

    wait_until(lambda: uuids() == IDS, 60, f"the ids of devices; {agents_output(site)}")
    done = unidle("fleet", "--store", site.store, "--json")
    assert "devices of pods: as its kubelet lists them" in done.stdout


def test_a_pod_of_others_takes_exactly_the_device_that_it_was_given(site: KubeSite, plugin: Plugin) -> None:
    plugin.tell(IDS, ["GPU-b"])
    other(site, "other", 1)
    wait_until(
        lambda: (known := others(site).get("default/other")) and known["devices"] == ["n1/1"],
        60,
        "the device of the pod",
    )


def test_ranks_are_shown_and_counted_for_the_devices_that_their_pod_was_given(
    site: KubeSite, plugin: Plugin
) -> None:
    plugin.tell(IDS, ["GPU-d", "GPU-c"])
    job = gang(site, "given", 2)
    site.attempt_runs(job)
    # placed on n1/0 and n1/2, given n1/3 and n1/2: the one that is both stays
    assert [shown(site, rank)[0] for rank in range(2)] == ["GPU-d", "GPU-c"]
    assert sorted(shown(site, 0)[1].split(",")) == ["GPU-c", "GPU-d"]
    assert "rank 0 got n1/3 from its host, not n1/0" in site.explained(job)
    places = site.job(job).attempts[0].places
    assert [place.slices for place in places] == [("n1/3",), ("n1/2",)]
    assert others(site)["default/other"]["devices"] == ["n1/1"]
    (site.place / "go").touch()
    assert site.ends(job).state == "succeeded", site.explained(job)
    wait_until(lambda: not site.pods(job), 120, "no pod of the job")
    assert unidle("ledger", "--check", "--store", site.store).returncode == 0


def test_a_device_that_leaves_is_the_one_that_left(site: KubeSite, plugin: Plugin) -> None:
    plugin.tell(["GPU-a", "GPU-b", "GPU-d"], [])

    def left() -> list[tuple[str, str]]:
        nodes = [node for node in site.view().fleet.nodes if node.id == "n1"]
        return [(device.id, device.uuid) for node in nodes for device in node.devices]

    wait_until(
        lambda: left() == [("n1/0", "GPU-a"), ("n1/1", "GPU-b"), ("n1/3", "GPU-d")], 120, "n1/2 to leave"
    )
