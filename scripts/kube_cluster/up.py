"""``scripts/kube up``: from nothing to nodes that are Ready."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from kube_cluster import assets, control_plane, down, groups, image, machine, network, node, pki, state
from kube_cluster.api import Api
from kube_cluster.layout import MASTER, MOST_KWOK, MOST_NODES, Layout, folder_of, named_nodes
from kube_cluster.processes import Starter
from kube_cluster.state import State
from unidle.errors import BadInput

_AT_ONCE: Final = 8
_FOR_EACH_KWOK_S: Final = 0.05


def up(nodes: int, kwok: int, given: Path | None) -> Path:
    """Start a cluster; the path of its kubeconfig. A cluster that cannot start is taken down, but for its logs.

    Errors: BadInput, CannotRun, InUse before anything is made; UnidleError where it does not start.
    """
    _check("--nodes", nodes, 1, MOST_NODES)
    _check("--kwok", kwok, 0, MOST_KWOK)
    machine.check()
    groups.hierarchies()
    found = assets.needed()
    layout = Layout(folder_of(given))
    layout.folder.mkdir(parents=True, exist_ok=True)
    with state.locked(layout):
        cluster = state.claim(layout, nodes, kwok)
        try:
            _start(cluster, found)
        except BaseException:
            tell("it does not start, or was stopped: all but its logs is taken down")
            down.take_down(layout, keep_logs=True)
            raise
    return layout.kubeconfig


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadInput(f"has to be from {least} to {most}", field=field, value=value)


def _start(cluster: State, found: assets.Assets) -> None:
    begun = time.monotonic()
    for folder in ("logs", MASTER, "nodes"):
        (cluster.layout.folder / folder).mkdir(mode=0o700, exist_ok=True)
    for log in (cluster.layout.folder / "logs").iterdir():
        log.unlink()
    cluster.write()
    with network.alone():
        cluster.octet = network.free_octet(cluster.layout)
        cluster.write()
        network.make_bridge(cluster.layout)
    starter, layout = Starter(cluster), cluster.layout
    tell(f"Kubernetes {assets.kubernetes_version()} in {layout.folder}, network {layout.network}")
    authority = control_plane.identities(layout)
    image.write(layout.image, Path(found.program("kube-tool")))
    groups.make(f"{layout.group}/{MASTER}")
    network.connect(layout, 0, starter.anchor(MASTER, mounts=False), cluster.nodes)
    network.route_from_host(layout, cluster.nodes)
    control_plane.start_api(starter, found)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            _start_nodes(starter, found, authority, pool, begun)
        except BaseException:
            starter.stopped.set()
            raise
    cluster.ready = True
    cluster.write()
    tell(f"{cluster.nodes + cluster.kwok} nodes are Ready after {time.monotonic() - begun:.1f} s")


def _start_nodes(
    starter: Starter, found: assets.Assets, authority: pki.Authority, pool: ThreadPoolExecutor, begun: float
) -> None:
    """The runtimes of nodes while the API server starts, then the rest of the control plane and the kubelets."""
    api, cluster = Api(starter.layout), starter.state
    runtimes = []
    for index, name in named_nodes(cluster.nodes):
        node.prepare(starter.layout, index, name, authority)
        runtimes.append(pool.submit(node.boot, starter, found, index, name))
    starter.until("the API server is ready", api.ready, ["etcd", "kube-apiserver"])
    tell(f"the API server is ready after {time.monotonic() - begun:.1f} s: {starter.layout.server}")
    control_plane.start_controllers(starter, found, cluster.kwok)
    _make_kwok(starter, found, api, pool)
    for (index, name), runtime in zip(named_nodes(cluster.nodes), runtimes, strict=True):
        runtime.result()
        node.start_kubelet(starter, index, name)
    _wait(starter, api)


def _make_kwok(starter: Starter, found: assets.Assets, api: Api, pool: ThreadPoolExecutor) -> None:
    count = starter.state.kwok
    if not count:
        return
    control_plane.start_kwok(starter, found, count)
    made = (control_plane.kwok_node(name) for name in kwok_names(count))
    for _ in pool.map(lambda told: api.create("/api/v1/nodes", told), made):
        pass
    tell(f"{count} nodes of kwok are created")


def kwok_names(count: int) -> Iterable[str]:
    """Names of the nodes that exist only in the API server."""
    return (f"k{index}" for index in range(1, count + 1))


def _wait(starter: Starter, api: Api) -> None:
    """Until all nodes are Ready and a pod can be created."""
    cluster = starter.state
    wanted = {name for _, name in named_nodes(cluster.nodes)} | set(kwok_names(cluster.kwok))
    reported: set[str] = set()

    def ready() -> bool:
        found = api.ready_nodes()
        for _, name in named_nodes(cluster.nodes):
            if name in found - reported:
                reported.add(name)
                tell(f"{name} is Ready")
        return found >= wanted

    needs = list(cluster.processes)
    limit_s = 120 + _FOR_EACH_KWOK_S * cluster.kwok
    starter.until("all nodes are Ready", ready, needs, limit_s)
    starter.until("pods can be created", lambda: control_plane.usable(api), needs)


def tell(text: str) -> None:
    print(f"kube: {text}", file=sys.stderr, flush=True)
