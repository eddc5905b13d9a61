"""Fleets that the placement benchmarks share: racks of 16 nodes behind leaves, 8 leaves behind a spine, 8 GPUs a node."""

from __future__ import annotations

from unidle.fleet import Device, Fleet, Link, Node, Tier

PER_RACK, PER_SPINE, GPUS = 16, 8, 8
GBPS = 1_000_000_000
# NVLink of an H100; one 400 Gbit/s port for each GPU; leaves 2:1 and spines 4:1 oversubscribed
LINKS = (
    Link("", "", 3_600 * GBPS, tier="device"),
    Link("", "", GPUS * 400 * GBPS, tier="node"),
    Link("", "", PER_RACK * GPUS * 400 * GBPS // 2, tier="leaf"),
    Link("", "", PER_SPINE * PER_RACK * GPUS * 400 * GBPS // 8, tier="spine"),
)


def fleet(nodes: int) -> Fleet:
    """A site of ``nodes`` nodes on InfiniBand."""
    leaves = -(-nodes // PER_RACK)
    spines = -(-leaves // PER_SPINE)
    tiers = [Tier("site", "site", None, "infiniband")]
    tiers += [Tier(f"spine-{k}", "spine", "site") for k in range(spines)]
    tiers += [Tier(f"leaf-{k}", "leaf", f"spine-{k // PER_SPINE}") for k in range(leaves)]
    return Fleet(tuple(tiers), tuple(_node(k) for k in range(nodes)), LINKS)


def _node(k: int) -> Node:
    name = f"n{k}"
    devices = tuple(Device(f"{name}/{i}", name, i, "gpu", "H100") for i in range(GPUS))
    return Node(name, f"leaf-{k // PER_RACK}", devices)
