"""Which free GPUs of a node are stranded: jobs took so much of its cores or memory that the GPUs' own shares are gone.

The share of a GPU is its part of the node's cores and memory, as if each GPU had equally much. Part of the fold.
"""

from __future__ import annotations

from collections.abc import Iterable

from unidle.fleet import Node, slices_of
from unidle.view.state import View


def usable(whole: int, left: int, devices: int) -> int:
    """For how many of ``devices`` what is left of cores or memory has their share; all where the node declares none."""
    return devices if whole <= 0 else max(left, 0) * devices // whole


def stranded_on(view: View, node: Node) -> list[str]:
    """The devices of a node that are free and stranded, the last ones first."""
    gpus = [device for device in node.devices if device.kind != "cpu"]
    if not gpus:
        return []
    book, count = view.book, len(gpus)
    cpu_milli, memory_bytes = view.hosts.get(node.id, (0, 0))
    cores = round(node.cpus * 1000)
    most = min(
        usable(cores, cores - cpu_milli, count),
        usable(node.memory_bytes, node.memory_bytes - memory_bytes, count),
    )
    free = [
        device.id for device in gpus if not any(book.held[k] or k in book.down for k in book.on(device.id))
    ]
    return free[::-1][: max(len(free) - most, 0)]


def strand(view: View, nodes: Iterable[str], now: int, *, asks: bool) -> None:
    """Post which free devices of these nodes are stranded from now on. ``asks``: what came or went asked for cores or memory."""
    if not (asks or view.book.stranded):
        return
    for name in dict.fromkeys(nodes):
        node = view.node(name)
        if node is None or not (node.cpus or node.memory_bytes):
            continue
        chosen = set(stranded_on(view, node))
        for device in node.devices:
            if device.kind != "cpu":
                for k in view.book.on(device.id):
                    view.book.set_stranded(k, device.id in chosen, now)


def shares_of(node: Node) -> tuple[float, int]:
    """Cores and bytes of memory of a node for each of its GPUs; 0 for what it does not declare, or without GPUs."""
    gpus = sum(1 for device in node.devices if device.kind != "cpu" and slices_of(device))
    return (node.cpus / gpus, node.memory_bytes // gpus) if gpus else (0.0, 0)
