"""Fleets that the placement benchmarks share: racks of 16 nodes behind leaves, 8 leaves behind a spine, 8 GPUs a node."""

from __future__ import annotations

from dataclasses import replace

from unidle.fleet import Device, Fleet, Link, Node, Tier
from unidle.fleet.queues import QueueSpec
from unidle.place.explain import why_blocked
from unidle.place.network.constraint import Blocked, Gang, GangPlan
from unidle.place.network.domains import DomainCapacity

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


MODELS = ("H100", "A100", "L40S")


def mixed(nodes: int, gpus: int = GPUS) -> Fleet:
    """The same network with three models of GPU, labels, taints, CPU and memory, and a tree of queues.

    Half of the racks have H100s, a third A100s, the others L40S; one rack of 25 is tainted, every
    second node has local disks.
    """
    plain = fleet(nodes)
    made = tuple(_mixed(k, node, gpus) for k, node in enumerate(plain.nodes))
    return replace(plain, nodes=made, queues=queues(nodes * gpus))


def _mixed(k: int, node: Node, gpus: int) -> Node:
    rack = k // PER_RACK
    model = ("H100", "A100", "H100", "A100", "H100", "L40S")[rack % 6]
    devices = tuple(
        Device(f"{node.id}/{i}", node.id, i, "gpu", model, memory_bytes=80 << 30) for i in range(gpus)
    )
    return replace(
        node, devices=devices, cpus=128.0, memory_bytes=1 << 40, taints=("lab",) if rack % 25 == 24 else (),
        labels={"disk": "nvme" if k % 2 else "none", "row": f"r{rack % 4}"},
    )  # fmt: skip


def queues(gpus: int) -> tuple[QueueSpec, ...]:
    """Two departments of two teams with guarantees, deserved shares and limits; a public queue next to them."""
    part = gpus // 20
    return (
        QueueSpec("research", deserved={"gpu": 8 * part}),
        QueueSpec("language", "research", guarantee={"gpu": part}, deserved={"gpu": 5 * part}),
        QueueSpec("vision", "research", weight=2, limit={"gpu": 16 * part}),
        QueueSpec("product", deserved={"gpu": 10 * part}),
        QueueSpec("ads", "product", guarantee={"gpu": 2 * part}, lend={"gpu": 4 * part}),
        QueueSpec("search", "product", limit={"gpu": 15 * part}),
        QueueSpec("spare", kind="public"),
    )


def plan_or_why(rooms: DomainCapacity, gang: Gang) -> GangPlan | Blocked:
    """Where the gang goes now, or why it cannot; nothing is changed."""
    return rooms.place(gang) or why_blocked(rooms, gang)
