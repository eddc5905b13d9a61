"""Communication of the ranks of a job: a few collectives on a separate CPU group; none with one rank."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class Collectives:
    """This rank among the others. Made on all ranks at the same point of the script."""

    def __init__(self) -> None:
        self._group: Any = None
        self.rank, self.world = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
            if self.world > 1:
                self._group = dist.new_group(backend="gloo")
        self.node = (
            os.environ.get("UNIDLE_NODE") or f"{socket.gethostname()}-{os.environ.get('GROUP_RANK', '0')}"
        )

    def most(self, values: Sequence[int]) -> list[int]:
        """The maximum of each value over all ranks."""
        if self._group is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        if self._group is None:
            return [value]
        found: list[Any] = [None] * self.world
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.all_gather_object(found, value, group=self._group)
        return found

    def from_first(self, value: Any) -> Any:
        """Rank 0's value."""
        if self._group is None:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return found[0]


def peer_of(rank: int, nodes: Sequence[str]) -> int | None:
    """The rank whose node keeps a copy of ``rank``'s state: in the same place on the next node. None on one node.

    ``nodes``: the node of each rank.
    """
    order = list(dict.fromkeys(nodes))
    if len(order) < 2:
        return None
    mine = [r for r, node in enumerate(nodes) if node == nodes[rank]]
    following = order[(order.index(nodes[rank]) + 1) % len(order)]
    theirs = [r for r, node in enumerate(nodes) if node == following]
    return theirs[mine.index(rank) % len(theirs)]


def writers(held: Sequence[dict[str, tuple[int, int]]]) -> dict[str, int | None]:
    """Which rank writes each piece that several ranks hold, so that all write about as much.

    ``held``: of each rank, piece: bytes and fingerprint. None for pieces whose values differ between ranks: each writes its own.
    """
    holders: dict[str, list[int]] = {}
    for rank, pieces in enumerate(held):
        for key in pieces:
            holders.setdefault(key, []).append(rank)
    loads = [0] * len(held)
    found: dict[str, int | None] = {}
    for key in sorted(holders, key=lambda key: (-held[holders[key][0]][key][0], key)):
        ranks = holders[key]
        if len({held[rank][key] for rank in ranks}) > 1:
            found[key] = None
            continue
        chosen = min(ranks, key=lambda rank: (loads[rank], rank))
        loads[chosen] += held[chosen][key][0]
        found[key] = chosen
    return found
