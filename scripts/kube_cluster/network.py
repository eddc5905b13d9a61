"""The network of a cluster: one bridge on this machine, a link to each namespace, routes to the pods of each node."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import socket
import subprocess
import time
from collections.abc import Iterator

from kube_cluster.layout import Layout, named_nodes
from kube_cluster.machine import run
from unidle.errors import CannotRun, UnidleError

_FIRST, _COUNT = 100, 100
_LOCK_LIMIT_S = 30.0


def free_octet(layout: Layout) -> int:
    """The X of a network 10.X.0.0/16 that no route and no address of this machine is in. Call it under :func:`alone`."""
    taken = used()
    begin = int(layout.id, 16) % _COUNT
    for step in range(_COUNT):
        octet = _FIRST + (begin + step) % _COUNT
        if not any(ipaddress.ip_network(f"10.{octet}.0.0/16").overlaps(network) for network in taken):
            return octet
    raise CannotRun(
        f"each network from 10.{_FIRST}.0.0/16 to 10.{_FIRST + _COUNT - 1}.0.0/16 is in use here",
        remedy="take another cluster down: scripts/kube down --dir DIR",
    )


def used() -> list[ipaddress.IPv4Network]:
    """Networks and addresses that this machine has a route to, but for the default one."""
    found = []
    for route in json.loads(run(*["ip", "-4", "-json", "route", "show", "table", "all"])):
        with contextlib.suppress(ValueError):  # default, and what is no network
            found.append(ipaddress.IPv4Network(route["dst"], strict=False))
    return [network for network in found if network.prefixlen > 0]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other cluster of this machine chooses its network meanwhile. The lock is a name that leaves no file."""
    deadline = time.monotonic() + _LOCK_LIMIT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
        while True:
            try:
                lock.bind("\0unidle-kube-network")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise UnidleError(
                        f"another cluster chooses its network for {_LOCK_LIMIT_S:.0f} s"
                    ) from error
                time.sleep(0.05)
        yield


def make_bridge(layout: Layout) -> None:
    """The bridge with the address of this machine."""
    bridge = layout.bridge
    _batch(
        f"link add {bridge} type bridge stp_state 0 forward_delay 0",
        f"address add {layout.host}/24 dev {bridge}",
        f"link set {bridge} up",
    )


def route_from_host(layout: Layout, nodes: int) -> None:
    """This machine reaches pods and the Service ``kubernetes``."""
    _batch(
        f"route add {layout.api_service}/32 via {layout.address(0)}",
        *(f"route add {layout.pods(i)} via {layout.address(i)}" for i, _ in named_nodes(nodes)),
    )


def connect(layout: Layout, index: int, pid: int, nodes: int) -> None:
    """Gives the network namespace of process ``pid`` its link, address and routes. ``index`` 0 is the control plane."""
    port = layout.port(index)
    _batch(
        f"link add {port} type veth peer name eth0 netns {pid}",
        f"link set {port} master {layout.bridge} up",
    )
    routes = [
        f"route add {layout.pods(i)} via {layout.address(i)}" for i, _ in named_nodes(nodes) if i != index
    ]
    own = f"address add {layout.api_service}/32 dev lo"
    to_api = f"route add {layout.service_range} via {layout.address(0)}"
    _batch(
        "link set lo up",
        f"address add {layout.address(index)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {layout.host}",
        to_api if index else own,
        *routes,
        inside=pid,
    )


def _batch(*lines: str, inside: int | None = None) -> None:
    enter = [] if inside is None else ["nsenter", f"--net=/proc/{inside}/ns/net"]
    run(*enter, "ip", "-batch", "-", text="\n".join(lines) + "\n")


def links(layout: Layout) -> list[str]:
    """Interfaces of this machine that belong to the cluster."""
    names = [link["ifname"] for link in json.loads(run("ip", "-json", "link"))]
    prefix = layout.port(0).removesuffix("0")
    return sorted(name for name in names if name == layout.bridge or name.startswith(prefix))


def disconnect(layout: Layout, index: int) -> None:
    """Take the link of a node away, where it has one."""
    subprocess.run(["ip", "link", "delete", layout.port(index)], capture_output=True, check=False)


def remove(layout: Layout) -> int:
    """Take all interfaces away, and with them their routes; returns how many there were."""
    found = links(layout)
    for name in found:  # a link may go by itself, with the namespace at its other end
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    if left := links(layout):
        raise UnidleError(f"these interfaces cannot be removed: {', '.join(left)}")
    return len(found)
