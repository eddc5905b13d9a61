"""Packing traces made up from a number: fleets of one to five models, pods of a few kinds each."""

from __future__ import annotations

import random

from unidle.jobs.packing import NodeSize, PodDemand

# Model, GPUs, CPUs, memory in GiB of one node.
MODELS = (
    ("H100", 8, 128, 1024), ("A100", 8, 96, 768), ("A100-PCIE", 4, 96, 262), ("A30", 4, 64, 512),
    ("A40", 6, 96, 500), ("T4", 4, 32, 128), ("L4", 2, 48, 256), ("V100", 1, 16, 64),
)  # fmt: skip
# Parts of a GPU that one kind of pod asks for, in thousandths.
PARTS = ((100, 200, 250, 300, 400, 500, 600, 700, 750, 900), (250, 500, 750), (334, 501, 667), (500,))
NODES, PODS = (60, 120, 200), (600, 1500)
NAMED = (0.0, 0.0, 0.2, 0.5)  # share of the pods that ask for one or two models


def made_up(number: int) -> tuple[tuple[NodeSize, ...], tuple[PodDemand, ...]]:
    """Fleet and pods; the same number, the same trace."""
    chance = random.Random(number)
    models = chance.sample(MODELS, chance.choice((1, 2, 3, 4, 5)))
    rows = chance.choices(models, [chance.choice((1, 2, 4)) for _ in models], k=chance.choice(NODES))
    if chance.random() < 0.5:
        rows.sort(key=models.index)  # else the models are mixed in the file
    nodes = tuple(
        NodeSize(f"n{k}", cpus * 1000, gib * 1024, gpus, model)
        for k, (model, gpus, cpus, gib) in enumerate(rows)
    )
    named = chance.choice(NAMED)
    kinds = [_kind(chance, max(node.gpus for node in nodes)) for _ in range(chance.randint(2, 5))]
    weights = [chance.choice((1, 2, 3, 5)) for _ in kinds]
    return nodes, tuple(
        _pod(chance, *kind, named, nodes) for kind in chance.choices(kinds, weights, k=chance.choice(PODS))
    )


def _kind(chance: random.Random, widest: int) -> tuple[PodDemand, tuple[int, ...]]:
    """What pods of a kind ask for, and the parts of a GPU among which each chooses."""
    gpus = chance.choice([count for count in (1, 1, 1, 2, 3, 4, 5, 8) if count <= widest])
    parts = chance.choice(PARTS) if gpus == 1 and chance.random() < 0.6 else (1000,)
    cpus, gib = chance.choice((0, 1, 2, 4, 8, 12)), chance.choice((2, 8, 16, 48))
    return PodDemand(cpus * 1000 * gpus, gib * 1024 * gpus, gpus), parts


def _pod(
    chance: random.Random, kind: PodDemand, parts: tuple[int, ...], named: float, nodes: tuple[NodeSize, ...]
) -> PodDemand:
    can = sorted(
        {
            node.model
            for node in nodes
            if node.gpus >= kind.gpus
            and node.cpu_milli >= kind.cpu_milli
            and node.memory_mib >= kind.memory_mib
        }
    )
    some = chance.random() < named and can
    models = frozenset(chance.sample(can, min(len(can), chance.choice((1, 1, 2))))) if some else frozenset()
    return kind._replace(gpu_milli=chance.choice(parts), models=models)
