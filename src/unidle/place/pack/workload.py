"""The target workload: what a policy may know of the pods to come, their distribution.

As in "Beware of Fragmentation" (USENIX ATC 2023): the most frequent specifications that together
cover 95 % of the pods, their shares normalised. Memory is no part of a specification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.place.pack.request import Bools, Floats, IntArray, Request

COVER_PPM: Final = 950_000


@dataclass(frozen=True, slots=True)
class Target:
    """Specifications as columns of shape (w,); ``share`` sums to 1, ``allowed`` is (w, models + 1).

    ``memory_mib`` is the mean of the pods of each, which it does not tell apart.
    """

    cpu_milli: IntArray
    memory_mib: IntArray
    gpus: IntArray
    gpu_milli: IntArray
    share: Floats
    allowed: Bools


def target_workload(requests: Iterable[Request], models: int, cover_ppm: int = COVER_PPM) -> Target:
    """The target workload of these pods on a pool with ``models`` GPU models."""
    counts: Counter[tuple[int, int, int, int]] = Counter()
    memory_mib: Counter[tuple[int, int, int, int]] = Counter()
    for r in requests:
        spec = r.cpu_milli, r.gpu_milli, r.gpus, r.terms.models
        counts[spec] += 1
        memory_mib[spec] += r.memory_mib
    total = counts.total()
    # Equal counts: the larger specification first, as published.
    ordered = sorted(counts.items(), key=lambda item: (item[1], item[0]), reverse=True)
    kept: list[tuple[tuple[int, int, int, int], int]] = []
    covered = 0
    for spec, count in ordered:
        if covered * 1_000_000 >= cover_ppm * total:
            break
        kept.append((spec, count))
        covered += count
    columns = np.array([spec[:3] for spec, _ in kept], np.int64).reshape(-1, 3)
    masks = [spec[3] for spec, _ in kept]
    return Target(
        cpu_milli=columns[:, 0],
        memory_mib=np.array([memory_mib[spec] // count for spec, count in kept], np.int64),
        gpu_milli=columns[:, 1],
        gpus=columns[:, 2],
        share=np.array([count for _, count in kept], np.float64) / max(covered, 1),
        allowed=np.array(
            [[not mask or bool(mask >> k & 1) for k in range(models + 1)] for mask in masks], np.bool_
        ).reshape(len(kept), models + 1),
    )
