"""Run by the Python of the peers: one task of one other client of Kubernetes; prints the seconds that it took.

They are of processor time, except for bindings."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def decode_kubernetes(path: str) -> float:
    from kubernetes import client  # type: ignore[import-not-found,unused-ignore]

    text = Path(path).read_text()
    api = client.ApiClient()
    begun = time.process_time()
    found = getattr(api, "_ApiClient__deserialize")(json.loads(text), "V1PodList")  # noqa: B009
    took = time.process_time() - begun
    assert found.items[-1].metadata.uid
    return took


def decode_lightkube(path: str) -> float:
    from lightkube.models.core_v1 import PodList  # type: ignore[import-not-found,unused-ignore]

    text = Path(path).read_text()
    begun = time.process_time()
    found = PodList.from_dict(json.loads(text))
    took = time.process_time() - begun
    assert found.items[-1].metadata.uid
    return took


def watch_kubernetes(server: str, count: str) -> float:
    from kubernetes import client, watch

    configuration = client.Configuration()
    configuration.host = server
    api = client.CoreV1Api(client.ApiClient(configuration))
    begun = time.process_time()
    events = watch.Watch().stream(api.list_pod_for_all_namespaces, resource_version="1")
    return _after(events, int(count), begun)


def watch_lightkube(server: str, count: str) -> float:
    import lightkube  # type: ignore[import-not-found,unused-ignore]
    from lightkube.config import kubeconfig  # type: ignore[import-not-found,unused-ignore]
    from lightkube.resources.core_v1 import Pod  # type: ignore[import-not-found,unused-ignore]

    cluster, user = kubeconfig.Cluster(server=server), kubeconfig.User()
    api = lightkube.Client(config=lightkube.KubeConfig.from_one(cluster=cluster, user=user))
    begun = time.process_time()
    return _after(api.watch(Pod, namespace="*", resource_version="1"), int(count), begun)


def _after(events: Any, count: int, begun: float) -> float:
    for number, event in enumerate(events, 1):
        # some clients decode what is used only
        found = event["object"] if isinstance(event, dict) else event[1]
        assert found.metadata.uid
        assert found.status.phase
        assert [container.resources.requests for container in found.spec.containers]
        if number == count:
            break
    return time.process_time() - begun


def bind_kubernetes(kubeconfig: str, names: str, threads: str) -> float:
    """``names`` is a file of pods in ``default``, one a line."""
    from kubernetes import client, config

    config.load_kube_config(kubeconfig)
    api = client.CoreV1Api(client.ApiClient(pool_threads=int(threads)))

    def bind(name: str) -> None:
        target = client.V1ObjectReference(api_version="v1", kind="Node", name="no-such-node")
        body = client.V1Binding(metadata=client.V1ObjectMeta(name=name), target=target)
        api.create_namespaced_binding("default", body, _preload_content=False)

    pods = Path(names).read_text().split()
    with ThreadPoolExecutor(int(threads)) as pool:
        list(pool.map(bind, pods[: int(threads)]))  # connections
        rest = pods[int(threads) :]
        begun = time.perf_counter()
        list(pool.map(bind, rest))
        return (time.perf_counter() - begun) * len(pods) / len(rest)


if __name__ == "__main__":
    print(globals()[sys.argv[1]](*sys.argv[2:]))
