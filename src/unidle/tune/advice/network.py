"""Settings of NCCL and of the host's network from what connects the nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from unidle.tune.advice.answer import WorkedAdvice

Fabric = Literal["infiniband", "roce", "ethernet"]
_SOCKET_GBPS: Final = 20
"""About what one TCP connection of NCCL carries."""
_MOST_SOCKETS: Final = 64
"""NCCL allows no more in product of threads and sockets of each."""


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Nodes, GPUs and network cards of each, Gbit/s of one card, microseconds there and back, and the names of interface and cards."""

    fabric: Fabric
    nodes: int
    gpus: int
    cards: int
    gbps: float
    rtt_us: float
    interface: str = ""
    devices: str = ""


def network_settings(links: NetworkShape, message_bytes: int) -> WorkedAdvice:
    """Environment of NCCL, sizes of TCP buffers, and about how long an all-reduce takes. ``message_bytes``: of the gradients, say."""
    lines: list[str] = []
    environment = _environment(links, lines)
    host = _host(links, lines)
    values: dict[str, int | float | str | None] = {"node_gbps": links.cards * links.gbps}
    values |= _all_reduce(links, message_bytes, lines)
    settings = [f"{name}={value}" for name, value in environment.items()] + host
    return WorkedAdvice(values, tuple(lines), tuple(settings))


def _environment(links: NetworkShape, lines: list[str]) -> dict[str, str]:
    found = {"NCCL_SOCKET_IFNAME": links.interface} if links.interface else {}
    if links.nodes == 1:
        lines.append("one node: nothing goes over the network")
        return found
    if links.fabric == "ethernet":
        sockets = max(1, min(_MOST_SOCKETS, math.ceil(links.gbps / _SOCKET_GBPS)))
        threads = min(8, max(1, math.ceil(math.sqrt(sockets))))
        each = math.ceil(sockets / threads)
        lines.append(
            f"TCP: one connection carries about {_SOCKET_GBPS} Gbit/s, so {links.gbps:g} / {_SOCKET_GBPS} = {sockets} of each peer: {threads} threads x {each}"
        )
        return found | {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(each)}  # fmt: skip
    if links.devices:
        found["NCCL_IB_HCA"] = links.devices
    if links.fabric == "roce":
        found["NCCL_IB_GID_INDEX"] = "3"
        lines.append(
            "RoCE v2 over IPv4 is most often entry 3 of `show_gids`; ECN and PFC have to be set on cards and switches"
        )
    shared = links.gpus / max(1, links.cards)
    lines.append(f"cards: {links.gpus} GPUs / {links.cards} = {shared:g} GPUs share one" + ("; rails stay apart" if shared <= 1 else ""))  # fmt: skip
    found["NCCL_CROSS_NIC"] = "0" if shared <= 1 else "1"
    if links.gbps >= 200:
        found["NCCL_IB_QPS_PER_CONNECTION"] = "4"
        lines.append(f"{links.gbps:g} Gbit/s: several queue pairs spread one connection over equal paths")
    return found


def _host(links: NetworkShape, lines: list[str]) -> list[str]:
    if links.nodes == 1 or links.fabric != "ethernet":
        return []
    window = math.ceil(links.gbps * 1e9 / 8 * links.rtt_us / 1e6)
    most = 1 << max(22, math.ceil(math.log2(2 * window)))
    lines.append(f"in flight: {links.gbps:g} Gbit/s x {links.rtt_us:g} us / 8 = {window:,} B; buffers of twice that, at least 4 MiB: {most:,} B")  # fmt: skip
    return [
        f"sysctl net.core.rmem_max={most} net.core.wmem_max={most}",
        f"sysctl net.ipv4.tcp_rmem='4096 131072 {most}' net.ipv4.tcp_wmem='4096 65536 {most}'",
        "ip link set dev IFACE mtu 9000, if all switches on the way carry it",
    ]


def _all_reduce(links: NetworkShape, size: int, lines: list[str]) -> dict[str, float | str]:
    """Ring and tree over nodes; inside a node the links are taken to be faster than the network."""
    n = links.nodes
    if n == 1 or not size:
        return {}
    node_gbps, hop_ms = links.cards * links.gbps, links.rtt_us / 2000
    wire = size * 8 / (node_gbps * 1e6)
    ring = 2 * (n - 1) / n * wire + 2 * (n - 1) * hop_ms
    tree = 2 * wire + 2 * math.ceil(math.log2(n)) * hop_ms
    lines += [
        f"node: {links.cards} x {links.gbps:g} = {node_gbps:g} Gbit/s",
        f"ring: 2 x {n - 1} / {n} x {size:,} B x 8 / {node_gbps:g} Gbit/s + 2 x {n - 1} x {hop_ms:g} ms = {ring:.2f} ms",
        f"tree: 2 x {size:,} B x 8 / {node_gbps:g} Gbit/s + 2 x {math.ceil(math.log2(n))} x {hop_ms:g} ms = {tree:.2f} ms",
        "NCCL chooses between them by itself; NCCL_ALGO is for measuring only",
    ]
    return {"ring_ms": ring, "tree_ms": tree, "faster": "ring" if ring <= tree else "tree"}
