"""Which GPUs of one node a rank gets: several the best connected set that fits, one the worst connected."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from unidle.fleet import Node
from unidle.fleet.links import SELF, UNKNOWN, GpuLinks, closeness
from unidle.jobs import Reason
from unidle.words import counted

# All sets are looked at up to here (16 choose 8 is 12,870), beyond that they are grown one by one.
_SETS: Final = 20_000
_ANSWERS_KEPT: Final = 65_536

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """GPUs by their index on the node, ascending."""

    gpus: tuple[int, ...]
    because: Reason


@dataclass(frozen=True, slots=True)
class Seats:
    """Slices of one node for some ranks: of each the bits, in rank order. ``weakest`` is a word, empty for one GPU."""

    ranks: tuple[tuple[int, ...], ...]
    weakest: str
    because: Reason


class NodeLinks:
    """Seats on all nodes of one fleet. Nodes with the same wiring share their results."""

    def __init__(self, links: Mapping[str, GpuLinks]) -> None:
        self._links = links
        self._nodes: dict[str, _Wired | None] = {}
        self._alike: dict[tuple[str, tuple[int | None, ...]], _Wired] = {}

    def seats(self, node: Node, mask: int, groups: tuple[int, ...], each: int) -> Seats | None:
        """Of the free GPUs in ``mask`` those that some ranks get; None where the links are not known.

        ``mask`` is over the node's GPU slices. ``groups`` has the number of ranks of each tensor group, in rank
        order; each of them takes ``each`` GPUs.
        """
        wired = self._of(node)
        return None if wired is None else wired.seats(mask, groups, each)

    def weakest(self, node: Node, count: int, mask: int | None = None) -> int | None:
        """How good the weakest link of the best ``count`` GPUs is, of those in ``mask`` or of all; None: not known."""
        wired = self._of(node)
        if wired is None:
            return None
        seats = wired.seats(wired.every if mask is None else mask, (1,), count)
        return closeness(seats.weakest) if seats is not None and seats.weakest else None

    def _of(self, node: Node) -> _Wired | None:
        if node.id not in self._nodes:
            self._nodes[node.id] = self._wired(node)
        return self._nodes[node.id]

    def _wired(self, node: Node) -> _Wired | None:
        links = self._links.get(node.gpu_links)
        if links is None:
            return None
        gpus: list[int | None] = []
        for device in node.devices:
            if device.kind != "gpu":
                continue
            if len(device.slices_ppm) == 1:
                gpus.append(device.index)
            else:  # parts of a GPU have no links of their own
                gpus += [None] * len(device.slices_ppm)
        key = (node.gpu_links, tuple(gpus))
        if key not in self._alike:
            self._alike[key] = _Wired(links, key[1])
        return self._alike[key]


class _Wired:
    """Nodes with the same wiring. ``gpus`` has the GPU of each bit."""

    def __init__(self, links: GpuLinks, gpus: tuple[int | None, ...]) -> None:
        self._links = links
        self._gpus = gpus = tuple(gpu if gpu in links.gpus else None for gpu in gpus)
        self._bits = {gpu: 1 << bit for bit, gpu in enumerate(gpus) if gpu is not None}
        self.every = sum(self._bits.values())
        self._answers: dict[tuple[int, tuple[int, ...], int], Seats | None] = {}

    def seats(self, mask: int, groups: tuple[int, ...], each: int) -> Seats | None:
        key = (mask, groups, each)
        if key not in self._answers:
            if len(self._answers) >= _ANSWERS_KEPT:
                self._answers.clear()
            self._answers[key] = self._find(mask, groups, each)
        return self._answers[key]

    def _find(self, mask: int, groups: tuple[int, ...], each: int) -> Seats | None:
        free = [gpu for bit, gpu in enumerate(self._gpus) if mask >> bit & 1]
        known = [gpu for gpu in free if gpu is not None]
        choice = choose_gpus(self._links, known, sum(groups) * each)
        if choice is None or len(known) < len(free):
            return None
        ranks: list[tuple[int, ...]] = []
        parts = _parts(self._links, choice.gpus, [ranks * each for ranks in groups])
        for size, part in zip(groups, parts, strict=True):
            ranks += _parts(self._links, part, [each] * size)
        seats = tuple(tuple(self._bits[gpu] for gpu in gpus) for gpus in ranks)
        return Seats(seats, str(choice.because.figures.get("weakest", "")), choice.because)


def text_of(seats: Mapping[str, Seats]) -> str:
    """In words, which GPUs a gang has on its nodes (by name), and why those; empty where nothing is known."""
    if not seats:
        return ""
    node, first = next(iter(seats.items()))
    if len(seats) == 1:
        return f"on {node} {first.because.text}"
    if not any(one.weakest for one in seats.values()):
        return f"on each of {counted(len(seats), 'node')} the GPU whose links are missed least"
    several = {name: one.weakest for name, one in seats.items() if one.weakest}
    node = min(several, key=lambda name: closeness(several[name]))
    text = f"on each of {counted(len(seats), 'node')} the best connected GPUs that are free"
    on = f" on {node}" if len(set(several.values())) > 1 else ""
    return f"{text}, the weakest link {several[node]}{on}"


def choose_gpus(links: GpuLinks, free: Sequence[int], count: int) -> GpuChoice | None:
    """``count`` of the ``free`` GPUs (indices on the node), or None where there are fewer.

    Sets compare by their weakest link, then by the sum of their links, then by how few NUMA nodes they
    touch, then by how well connected those that stay free are; the lowest indices break the tie. Of
    single GPUs the one goes whose loss costs the others least.
    """
    given = sorted(set(free))
    if count < 1 or len(given) < count:
        return None
    near = _near(links, given)
    many = comb(len(given), count)
    sets = _all_sets(len(given), count) if many <= _SETS else _grown(near, count)
    weakest, total = _inside(near, sets)
    best = sets[weakest == weakest.max()]
    total = total[weakest == weakest.max()]
    best, total = best[total == total.max()], total[total == total.max()]
    if len(best) > 1:
        spread = _spread(links, given, best)
        best = best[spread == spread.min()]
    if (
        len(best) > 1
    ):  # the links that stay: all, less those of the set's GPUs, which counts those inside twice
        lost = near.sum(axis=1)[best].sum(axis=1)
        best = best[lost == lost.min()]
    gpus = tuple(given[k] for k in best[0])
    return GpuChoice(gpus, _because(links, gpus, len(given)))


def _near(links: GpuLinks, gpus: Sequence[int]) -> Ints:
    at = [links.gpus.index(gpu) for gpu in gpus]
    rows = [[0 if links.ways[i][k] == SELF else closeness(links.ways[i][k]) for k in at] for i in at]
    return np.array(rows, dtype=np.int64).reshape(len(at), len(at))


def _spread(links: GpuLinks, gpus: Sequence[int], sets: Ints) -> Ints:
    """How many NUMA nodes each set touches; those that are not known count as one."""
    numa = links.numa or (None,) * len(links.gpus)
    of = [numa[links.gpus.index(gpu)] for gpu in gpus]
    touches = np.array([[node == each for node in dict.fromkeys(of)] for each in of])
    found: Ints = touches[sets].any(axis=1).sum(axis=1)
    return found


@lru_cache(maxsize=64)
def _all_sets(n: int, count: int) -> Ints:
    return np.array(list(itertools.combinations(range(n), count)), dtype=np.int64).reshape(-1, count)


def _grown(near: Ints, count: int) -> Ints:
    """One set from each GPU: the next is the one with the best links to those chosen."""
    sets = []
    for first in range(len(near)):
        chosen = [first]
        while len(chosen) < count:
            gain = near[chosen].min(axis=0) * (1 << 32) + near[chosen].sum(axis=0)
            gain[chosen] = -1
            chosen.append(int(gain.argmax()))
        sets.append(sorted(chosen))
    return np.array(sorted(sets), dtype=np.int64)


def _inside(near: Ints, sets: Ints) -> tuple[Ints, Ints]:
    """The weakest link and the sum of links of each set; zero for sets of one."""
    count = sets.shape[1]
    pairs = list(itertools.combinations(range(count), 2))
    if not pairs:
        zero = np.zeros(len(sets), dtype=np.int64)
        return zero, zero
    a, b = np.array(pairs).T
    links = near[sets[:, a], sets[:, b]]
    return links.min(axis=1), links.sum(axis=1)


def _parts(links: GpuLinks, gpus: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The GPUs in parts of these sizes, each the best connected of those that are left."""
    if all(size == 1 for size in sizes):
        return [(gpu,) for gpu in gpus]
    left, found = list(gpus), []
    for size in sizes:
        choice = choose_gpus(links, left, size)
        part = choice.gpus if choice else ()
        left = [gpu for gpu in left if gpu not in part]
        found.append(part)
    return found


def _because(links: GpuLinks, gpus: tuple[int, ...], free: int) -> Reason:
    named = ", ".join(map(str, gpus))
    figures: dict[str, int | float | str] = {"gpus": len(gpus), "free": free}
    if len(gpus) == 1:
        return Reason(
            "worst_connected", f"GPU {named}: of {free} free, the one whose links are missed least", figures
        )
    ways = {links.way(a, b) for a, b in itertools.combinations(gpus, 2)}
    weakest = min(ways, key=closeness)
    figures["weakest"] = weakest
    how = "not all links are known" if weakest == UNKNOWN else f"{weakest} or better"
    return Reason("best_connected", f"GPUs {named}: of {free} free, the best connected ({how})", figures)
