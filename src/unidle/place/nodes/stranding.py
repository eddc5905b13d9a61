"""What CPU and memory of a node are worth: the free GPUs that would be without their share of them.

A GPU's share is its part of the node's cores and memory (:mod:`unidle.view.stranded` posts the same to the ledger).
"""

from __future__ import annotations

import numpy as np

from unidle.place.network.tree import Ints
from unidle.place.nodes.free import FreeSlices


def stranded_by(free_slices: FreeSlices, asked: tuple[int, int], devices: int) -> Ints:
    """How many more free GPUs of each node are stranded if ``devices`` of them are taken with so much CPU and memory.

    ``asked``: thousandths of cores, and bytes. Shape (N,).
    """
    gpus = free_slices.gpus
    free = np.zeros(len(gpus), np.int64)
    for kind in free_slices.free:
        if kind != "cpu":
            free += free_slices.left(kind)
    left, share = free_slices.hosts, np.maximum(free_slices.whole // np.maximum(gpus, 1), 1)
    before = _stranded(free, left, share)
    after = _stranded(np.maximum(free - devices, 0), left - np.array(asked, np.int64)[:, None], share)
    price: Ints = np.where(gpus > 0, after - before, 0)
    return price


def _stranded(free: Ints, left: Ints, share: Ints) -> Ints:
    """Free GPUs beyond those for which the scarcer of CPU and memory, (2, N), has their share."""
    found: Ints = np.maximum(free - (np.maximum(left, 0) // share).min(axis=0), 0)
    return found
