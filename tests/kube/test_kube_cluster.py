"""A real cluster on this machine: its nodes and pods, what ends in it, and that nothing of it stays.

All tests of this file use one cluster, in this order; only `make test-kube` runs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
from kube.cluster import KUBE, Cluster, kube, pod, routes
from kube_cluster.traces import traces
from waiting import wait_until

pytestmark = [pytest.mark.kube, needs.kube, needs.own_mounts]
NODES = ("n1", "n2", "n3")
KWOK = 5
SETTINGS = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory", "net/ipv4/ip_forward")


def settings() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text() for name in SETTINGS}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kube") / "cluster"
    settings_before = settings()
    started = kube("up", "--nodes", len(NODES), "--kwok", KWOK, "--dir", folder)
    try:
        assert started.returncode == 0, started.stderr
        assert started.stdout.splitlines()[-1] == str(folder / "kubeconfig")
        found = Cluster(folder)
        yield found
    finally:
        ended = kube("down", "--dir", folder)
    assert ended.returncode == 0, ended.stderr
    assert traces(found.layout) == []
    assert routes(found.layout) == []
    assert settings() == settings_before


def test_all_nodes_are_ready_when_up_returns(cluster: Cluster) -> None:
    nodes = cluster.get("nodes")["items"]
    assert {node["metadata"]["name"] for node in nodes} == {*NODES, *(f"k{i + 1}" for i in range(KWOK))}
    for node in nodes:
        assert {"Ready": "True"}.items() <= {
            c["type"]: c["status"] for c in node["status"]["conditions"]
        }.items()
    real = [node["status"]["nodeInfo"] for node in nodes if node["metadata"]["name"] in NODES]
    assert all(info["containerRuntimeVersion"].startswith("containerd://2.") for info in real)
    told = cluster.status()
    assert told["whole"]
    assert told["nodes"] == dict.fromkeys(NODES, True)
    assert all(process["alive"] for process in told["processes"].values())


def test_the_scheduler_spreads_pods_and_each_reaches_each(cluster: Cluster) -> None:
    names = [f"serve-{node}" for node in NODES]
    for name, node in zip(names, NODES, strict=True):
        cluster.kubectl("create", "-f", "-", told=pod(name, "serve", ":8080", name, node=node))
    wait_until(lambda: all(cluster.phase(name) == "Running" for name in names), 120, "all pods run")
    addresses = {name: cluster.get("pod", name)["status"]["podIP"] for name in names}
    assert len(set(addresses.values())) == len(names)
    for client in names:
        for server in names:
            url = f"http://{addresses[server]}:8080/"
            told = cluster.kubectl("exec", client, "--", "/kube-tool", "fetch", url, "20")
            assert told == f"{server} to {addresses[client]}\n"
    printed = cluster.kubectl("logs", names[0]).splitlines()
    assert {f"request from {addresses[name]}" for name in names} <= set(printed)
    # this machine reaches pods too: the controller of the product may run next to the cluster
    done = subprocess.run(
        ["curl", "-sS", f"http://{addresses[names[1]]}:8080/"], capture_output=True, text=True
    )
    assert done.stdout == f"{names[1]} to {cluster.host}\n"


def test_a_pod_reaches_the_api_server_by_the_address_in_its_environment(cluster: Cluster) -> None:
    environment = dict(
        line.split("=", 1)
        for line in Path(f"/proc/{pid_of(cluster, 'serve-n2')}/environ").read_text().split("\0")
        if "=" in line
    )
    address = f"{environment['KUBERNETES_SERVICE_HOST']}:{environment['KUBERNETES_SERVICE_PORT']}"
    done = cluster.tried("exec", "serve-n2", "--", "/kube-tool", "fetch", f"http://{address}/", "0")
    assert "400 Bad Request" in done.stderr  # it is a server of TLS


def test_a_pod_that_is_deleted_ends_its_processes(cluster: Cluster) -> None:
    pid = pid_of(cluster, "serve-n3")
    cluster.kubectl("delete", "pod", "serve-n3")
    assert cluster.tried("get", "pod", "serve-n3").returncode != 0
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, "the end of the process")


def test_an_exit_code_is_the_one_of_the_process(cluster: Cluster) -> None:
    cluster.kubectl("create", "-f", "-", told=pod("fails", "exit", "7"))
    wait_until(lambda: cluster.phase("fails") == "Failed", 60, "the pod's end")
    [container] = cluster.get("pod", "fails")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 7


def test_a_pod_can_run_the_user_space_of_this_machine(cluster: Cluster) -> None:
    """As tests of the product do: the image has places for it."""
    told = pod(
        "user-space",
        container={
            "command": ["/bin/sh", "-c", "echo $((6 * 7)) on $(cat /proc/sys/kernel/hostname)"],
            "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
        },
        volumes=[{"name": "usr", "hostPath": {"path": "/usr"}}],
        nodeName="n1",
    )
    cluster.kubectl("create", "-f", "-", told=told)
    wait_until(lambda: cluster.phase("user-space") == "Succeeded", 60, "the pod's end")
    assert cluster.kubectl("logs", "user-space") == "42 on user-space\n"


def test_a_pod_of_kwok_runs_without_a_process(cluster: Cluster) -> None:
    tolerated = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]
    cluster.kubectl(
        "create", "-f", "-", told=pod("fake", "pause", tolerations=tolerated, nodeSelector={"type": "kwok"})
    )
    wait_until(lambda: cluster.phase("fake") == "Running", 60, "kwok's pod runs")
    assert cluster.get("pod", "fake")["spec"]["nodeName"].startswith("k")


def test_a_gang_is_placed_by_the_workload_api(cluster: Cluster) -> None:
    """What the peer of the benchmarks needs: PodGroup is served, and on."""
    served = cluster.kubectl("api-resources", "--api-group=scheduling.k8s.io", "-o", "name").split()
    assert {"podgroups.scheduling.k8s.io", "workloads.scheduling.k8s.io"} <= set(served)


def test_a_node_that_reboots_comes_back_with_its_pods(cluster: Cluster) -> None:
    cluster.kubectl("create", "-f", "-", told=pod("stays", "pause", node="n3", restartPolicy="Always"))
    wait_until(lambda: cluster.phase("stays") == "Running", 60, "the pod runs")
    pid = pid_of(cluster, "stays")
    done = kube("restart", "n3", "--dir", cluster.folder)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not runs(pid), 60, "the process of the pod ends with its node")
    [before] = cluster.get("pod", "stays")["status"]["containerStatuses"]

    def runs_again() -> bool:
        [now] = cluster.get("pod", "stays")["status"]["containerStatuses"]
        return now["restartCount"] > 0 and "running" in now["state"]

    wait_until(runs_again, 120, f"the pod runs again, after {before}")
    wait_until(lambda: cluster.status()["whole"], 120, "n3 is Ready")


def test_a_node_that_was_killed_is_away_until_it_is_started_again(cluster: Cluster) -> None:
    pid = pid_of(cluster, "stays")
    done = kube("kill", "n3", "--dir", cluster.folder)
    assert done.returncode == 0, done.stderr
    assert not runs(pid)
    told = cluster.status()
    assert {name for name, process in told["processes"].items() if not process["alive"]} == {
        "n3/anchor", "n3/containerd", "n3/kubelet",
    }  # fmt: skip
    wait_until(lambda: not cluster.status()["nodes"]["n3"], 120, "n3 is not Ready")
    assert kube("restart", "n3", "--dir", cluster.folder).returncode == 0
    wait_until(lambda: cluster.status()["whole"], 120, "n3 is Ready")


def test_a_control_plane_that_was_killed_keeps_its_objects(cluster: Cluster) -> None:
    for process in ("etcd", "kube-apiserver"):
        done = kube("restart", process, "--dir", cluster.folder)
        assert done.returncode == 0, done.stderr
    wait_until(lambda: cluster.tried("get", "pod", "stays").returncode == 0, 120, "the API server answers")
    wait_until(lambda: cluster.status()["whole"], 120, "all is whole again")


def test_restart_of_an_unknown_name_lists_those_that_are_known(cluster: Cluster) -> None:
    done = kube("restart", "n9", "--dir", cluster.folder)
    assert done.returncode == 2
    assert "n2/kubelet" in done.stderr


def test_up_refuses_a_directory_that_is_in_use(cluster: Cluster) -> None:
    done = kube("up", "--dir", cluster.folder)
    assert done.returncode == 4
    assert "this directory has a cluster already" in done.stderr
    assert cluster.status()["whole"]


@pytest.mark.parametrize("process", ["cp/anchor", "n1/anchor", "kube-controller-manager", "n1/kubelet"])
def test_down_removes_what_a_killed_up_left_and_nothing_of_another_cluster(
    cluster: Cluster, tmp_path: Path, process: str
) -> None:
    folder = tmp_path / "killed"
    up = subprocess.Popen([KUBE, "up", "--nodes", "1", "--dir", folder], stderr=subprocess.PIPE, text=True)
    layout = Cluster(folder).layout

    def begun() -> bool:
        assert up.poll() is None, up.stderr.read() if up.stderr else ""
        state = folder / "cluster.json"
        return state.exists() and process in json.loads(state.read_text())["processes"]

    wait_until(begun, 120, f"the start of {process}")
    os.kill(up.pid, signal.SIGKILL)
    up.communicate()
    assert traces(layout) != []
    assert kube("status", "--dir", folder).returncode == 1
    done = kube("down", "--dir", folder)
    assert done.returncode == 0, done.stderr
    assert traces(layout) == []
    assert routes(layout) == []
    assert cluster.status()["whole"]


def test_up_that_is_stopped_takes_down_what_it_made(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    up = subprocess.Popen([KUBE, "up", "--nodes", "1", "--dir", folder], stderr=subprocess.DEVNULL)
    wait_until(lambda: (folder / "logs" / "kube-apiserver.log").exists(), 120, "the start of the API server")
    up.send_signal(signal.SIGTERM)
    assert up.wait(120) == 143
    layout = Cluster(folder).layout
    assert traces(layout) == [f"file {folder}"]
    assert {entry.name for entry in folder.iterdir()} == {"logs", "lock"}
    assert kube("down", "--dir", folder).returncode == 0
    assert traces(layout) == []


def test_status_reports_a_kubelet_that_was_killed(cluster: Cluster) -> None:
    """The last test: `down` after it has to find all the same."""
    os.kill(cluster.status()["processes"]["n2/kubelet"]["pid"], signal.SIGKILL)
    wait_until(lambda: not cluster.status()["nodes"]["n2"], 120, "n2 is not Ready")
    done = kube("status", "--dir", cluster.folder)
    assert done.returncode == 1
    assert "has ended" in done.stdout
    assert "node n2                  not Ready" in done.stdout
    os.kill(cluster.status()["processes"]["n1/containerd"]["pid"], signal.SIGKILL)
    os.kill(cluster.status()["processes"]["etcd"]["pid"], signal.SIGKILL)


def pid_of(cluster: Cluster, name: str) -> int:
    """The process of a pod, seen from this machine: the group of its container names it."""
    status = cluster.get("pod", name)["status"]
    container = status["containerStatuses"][0]["containerID"].rpartition("/")[2]
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # one that ends meanwhile
            if entry.name.isdigit() and container in (entry / "cgroup").read_text():
                return int(entry.name)
    raise AssertionError(f"no process of {name}")


def runs(pid: int) -> bool:
    """Whether a process is there that has not ended: one that nobody waits for stays in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
