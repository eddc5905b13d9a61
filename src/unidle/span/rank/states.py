"""How far two checkpoints of one model are apart. ``python -m unidle.span.rank.states ONE OTHER STEP``; needs PyTorch."""

from __future__ import annotations

import json
import sys

import torch

from unidle.checkpoint.layout import read_manifest
from unidle.rank.checkpoint.reader import ShardSet, Stored
from unidle.span.rank.shards import steps_in


def states(directory: str, step: int) -> dict[str, torch.Tensor]:
    """The model's tensors of the checkpoint of ``step``, by name."""
    path = steps_in(directory)[step]
    shards = ShardSet([Stored(path, shard) for shard in read_manifest(path).shards])
    return {
        name: shards.tensor(name, next(iter(places)))
        for name, places in shards.pieces.items()
        if name.startswith("model.")
    }


def main(one: str, other: str, step: str) -> None:
    """Prints one JSON object: how many parameters, and the largest difference."""
    a, b = states(one, int(step)), states(other, int(step))
    if a.keys() != b.keys():
        sys.exit(f"they hold different names: {', '.join(sorted(a.keys() ^ b.keys())[:5])}")
    differences = [float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel()]
    count = sum(value.numel() for value in a.values())
    print(json.dumps({"parameters": count, "parameter_difference": max(differences, default=0.0)}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
