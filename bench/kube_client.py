"""How fast the client of the Kubernetes API is: decoding pods, following a watch, and binding pods on a real API server.

Decoding and watches need no cluster: pods are as an API server writes them, and a process of this machine serves them.
Their rates are per second of processor time of the client, which other load of the machine does not change.
Bindings need one: it is started (make kube-assets builds it), or named by --kubeconfig. Pods are bound to a node that is
not there, so that no kubelet competes. Other clients do the same next to it, where they can be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from _kube_peers import PEERS, Peers
from _table import Row, main
from kube_cluster import assets
from unidle.kube.access import ClusterAccess
from unidle.kube.client import open_client
from unidle.kube.kubeconfig import load_access
from unidle.kube.objects import PODS, Pod
from unidle.kube.protocol import Bind, Create, Delete, Put, WriteDone
from unidle.kube.reflector import follow
from unidle.kube.writer import ApiWriter, open_writer

ROOT = Path(__file__).resolve().parent.parent
KUBE = ROOT / "scripts" / "kube"
THREADS = 8
SLOWER = 10  # other clients follow so many times fewer events
JOB = "bench-kube-client"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pods", type=int, default=5_000, help="pods in the list (default 5000)")
    parser.add_argument(
        "--events", type=int, default=50_000, help="events of the watch (default 50000; a tenth for others)"
    )
    parser.add_argument("--bindings", type=int, default=1_000, help="pods that are bound (default 1000)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each; the median counts (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, one run")
    parser.add_argument("--kubeconfig", type=Path, help="a cluster for the bindings (default: start one)")
    parser.add_argument("--no-cluster", action="store_true", help="leave the bindings out")


def pod(number: int) -> dict[str, Any]:
    """A pod as the API server gives it: 2.9 kB, with the fields that a client does not use."""
    stamp = "2026-01-01T00:00:00Z"
    name = f"train-{number:06}"
    managed = [
        {"manager": who, "operation": "Update", "apiVersion": "v1", "time": stamp, "fieldsType": "FieldsV1",
         "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:containers": {'k:{"name":"main"}': {
             ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {}, "f:terminationMessagePath": {}}}}}}
        for who in ("unidle", "kubelet")
    ]  # fmt: skip
    return {
        "metadata": {
            "name": name, "namespace": "default", "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(1000 + number), "creationTimestamp": stamp, "managedFields": managed,
            "labels": {"unidle.dev/job": f"job-{number % 97}", "app": "train"},
            "annotations": {"unidle.dev/attempt": "1", "unidle.dev/ranks": "0-7"},
        },
        "spec": {
            "volumes": [{"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}]}}],
            "containers": [{
                "name": "main", "image": "registry.example.com/train:1", "command": ["unidle", "box"],
                "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "8"}},
                "volumeMounts": [{"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent"}],
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "nodeName": f"n{number % 1000}",
            "serviceAccountName": "default", "securityContext": {}, "schedulerName": "unidle",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "priority": 0, "enableServiceLinks": True, "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {
            "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "startTime": stamp, "qosClass": "Burstable",
            "conditions": [{"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": stamp}
                           for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")],
            "containerStatuses": [{
                "name": "main", "state": {"running": {"startedAt": stamp}}, "lastState": {}, "ready": True, "restartCount": 0,
                "image": "registry.example.com/train:1", "imageID": f"sha256:{number:064}", "containerID": f"containerd://{number:064}", "started": True}],
        },
    }  # fmt: skip


def median_of(runs: int, task: Callable[[], float]) -> float:
    return statistics.median(task() for _ in range(runs))


def decode(body: bytes) -> float:
    class Pods(msgspec.Struct, frozen=True):
        items: list[Pod]

    begun = time.process_time()
    found = msgspec.json.decode(body, type=Pods)
    took = time.process_time() - begun
    assert found.items[-1].metadata.uid
    return took


def follow_events(server: str, count: int) -> float:
    """As an engine does: all threads, the queue and the cache."""
    with contextlib.closing(open_client(ClusterAccess(server))) as client:
        begun = time.process_time()
        watch = follow(client, PODS)
        with contextlib.closing(watch):
            seen = 0
            while seen < count:
                select.select([watch.wake_fd], [], [], 60)
                seen += sum(isinstance(event, Put) for event in watch.poll())
            return time.process_time() - begun


@contextlib.contextmanager
def served(events: Path) -> Iterator[str]:
    """The address of a server whose watch is the file's lines."""
    command = [sys.executable, str(Path(__file__).with_name("_kube_events.py")), str(events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def of_peers(
    peers: Peers, task: str, arguments: tuple[object, ...], runs: int, names: tuple[str, ...] = PEERS
) -> dict[str, float]:
    found = {}
    for name in names:
        with contextlib.suppress(ValueError):
            found[name] = median_of(runs, lambda name=name: peers.seconds(f"{task}_{name}", *arguments))  # type: ignore[misc]
    return found


def compared(
    what: str, unit: str, count: int, ours_s: float, peers: dict[str, float], goal: float, how: str
) -> Row:
    """A row against the fastest of the peers."""
    if not peers:
        return Row(what, unit, count / ours_s, peer_name="no peer could be installed", how=how)
    name = min(peers, key=lambda name: peers[name])
    others = ", ".join(f"{name} {count / peers[name]:,.0f}" for name in sorted(peers))
    ratio = peers[name] / ours_s
    return Row(
        what, unit, count / ours_s, count / peers[name], f"{name}; {others}", ratio,
        f"at least {goal:g} times the fastest of them", ratio >= goal, how,
    )  # fmt: skip


def rows(parsed: argparse.Namespace) -> Iterator[Row]:
    if parsed.quick:
        parsed.pods, parsed.events, parsed.bindings, parsed.runs = 500, 5_000, 100, 1
    peers = Peers()
    how = f"measured here: median of {parsed.runs}"
    with tempfile.TemporaryDirectory(prefix="unidle-bench-kube.") as scratch:
        yield decoding(peers, parsed, Path(scratch), how)
        yield watching(peers, parsed, Path(scratch), how)
        if parsed.kubeconfig is None and not parsed.no_cluster and assets.complete() is None:
            print("no cluster is built here (make kube-assets): no bindings", file=sys.stderr)
        elif not parsed.no_cluster:
            with cluster(parsed.kubeconfig, Path(scratch)) as kubeconfig:
                yield bindings(kubeconfig, peers, parsed, Path(scratch), how)


def decoding(peers: Peers, parsed: argparse.Namespace, scratch: Path, how: str) -> Row:
    whole = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {},
        "items": [pod(n) for n in range(parsed.pods)],
    }
    body = json.dumps(whole)
    listed = scratch / "pods.json"
    listed.write_text(body)
    ours_s = median_of(parsed.runs, lambda: decode(body.encode()))
    others = of_peers(peers, "decode", (listed,), parsed.runs)
    how += f"; {parsed.pods:,} pods, {len(body) / 1e6:.1f} MB"
    return compared("decode a list of pods", "pods/CPU s", parsed.pods, ours_s, others, 5, how)


def watching(peers: Peers, parsed: argparse.Namespace, scratch: Path, how: str) -> Row:
    events = scratch / "events"
    with events.open("w") as file:
        for number in range(parsed.events):
            found = {"kind": "Pod", "apiVersion": "v1", **pod(number)}
            file.write(json.dumps({"type": "ADDED", "object": found}) + "\n")
    few = max(1, parsed.events // SLOWER)
    with served(events) as server:
        ours_s = median_of(parsed.runs, lambda: follow_events(server, parsed.events))
        others = of_peers(peers, "watch", (server, few), parsed.runs)
    others = {name: seconds * parsed.events / few for name, seconds in others.items()}
    how += f"; {parsed.events:,} events over HTTP from a process of this machine"
    what = "follow a watch, with cache and queue"
    return compared(what, "events/CPU s", parsed.events, ours_s, others, 5, how)


@contextlib.contextmanager
def cluster(given: Path | None, scratch: Path) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    folder = scratch / "cluster"
    try:
        done = subprocess.run(
            [KUBE, "up", "--nodes", "1", "--dir", folder], check=True, stdout=subprocess.PIPE, text=True
        )
        yield Path(done.stdout.splitlines()[-1])
    finally:
        subprocess.run([KUBE, "down", "--dir", folder], check=True)


def bindings(kubeconfig: Path, peers: Peers, parsed: argparse.Namespace, scratch: Path, how: str) -> Row:
    """Ours and the peer in turn, so that both meet the same machine."""
    client = open_client(load_access(kubeconfig))
    writer = open_writer(client, threads=THREADS, timeout_s=60)
    ours, other = [], []
    try:
        for run in range(parsed.runs):
            pods = made(writer, f"ours-{run}", parsed.bindings)
            begun = time.perf_counter()
            writer.write(*(Bind("default", name, uid, "no-such-node") for name, uid in pods.items()))
            ended(writer)
            ours.append(time.perf_counter() - begun)
            removed(writer, pods)
            pods = made(writer, f"peer-{run}", parsed.bindings)
            names = scratch / "names"
            names.write_text("\n".join(pods))
            with contextlib.suppress(ValueError):
                other.append(peers.seconds("bind_kubernetes", kubeconfig, names, THREADS))
            removed(writer, pods)
    finally:
        writer.close()
        client.close()
    found = {"kubernetes": statistics.median(other)} if other else {}
    return compared(
        "bind pods on a real API server", "bindings/s", parsed.bindings, statistics.median(ours), found, 0.9,
        f"{how}; {parsed.bindings:,} bindings, {THREADS} threads each; the server is the bound",
    )  # fmt: skip


def made(writer: ApiWriter, prefix: str, count: int) -> dict[str, str]:
    """Pods that no scheduler binds: their UIDs by name."""
    spec = {"schedulerName": "unidle", "containers": [{"name": "main", "image": "none"}]}
    for number in range(count):
        metadata = {"name": f"{prefix}-{number}", "namespace": "default", "labels": {"unidle.dev/job": JOB}}
        writer.write(Create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    found = [result.object(PODS) for result in ended(writer)]
    return {item.metadata.name: item.metadata.uid for item in found}


def removed(writer: ApiWriter, pods: dict[str, str]) -> None:
    writer.write(*(Delete(PODS, "default", name, uid, 0) for name, uid in pods.items()))
    ended(writer)


def ended(writer: ApiWriter) -> list[WriteDone]:
    found: list[WriteDone] = []
    while writer.waiting or not found:
        select.select([writer.wake_fd], [], [], 1)
        for result in writer.poll():
            if not isinstance(result, WriteDone):
                sys.exit(f"a write failed: {result}")
            found.append(result)
    for result in writer.poll():
        assert isinstance(result, WriteDone)
        found.append(result)
    return found


if __name__ == "__main__":
    main("kube_client", rows, arguments)
