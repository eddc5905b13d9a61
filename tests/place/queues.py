"""Trees of queues and ways to fit a gang, for the tests of queues."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from unidle.fleet.queues import QueueSpec
from unidle.place.model import Fits, Ints
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.tree import QueueTree

GPU = ("gpu",)
BOTH = ("gpu", "cpu")
HOUR = 3_600_000_000_000


def tree(*specs: QueueSpec, resources: Sequence[str] = GPU) -> QueueTree:
    return QueueTree.of(specs, resources)


def shares(*specs: QueueSpec, gpus: int, now_ns: int = 0) -> FairShare:
    return FairShare(tree(*specs), (gpus * 1000,), now_ns)


def anywhere(ranks: int) -> Fits:
    """The gang fits wherever there is room, in the order of the nodes."""
    return within(ranks, None)


def within(ranks: int, domains: Sequence[tuple[int, int]] | None) -> Fits:
    """The whole gang in one of the ranges of nodes, the one with the least room left over."""

    def fits(room: Ints) -> Ints | None:
        best: tuple[int, int, int] | None = None
        for start, end in domains or ((0, len(room)),):
            total = int(room[start:end].sum())
            if total >= ranks and (best is None or total < best[0]):
                best = (total, start, end)
        if best is None:
            return None
        counts = np.zeros(len(room), np.int64)
        left = ranks
        for node in range(best[1], best[2]):
            counts[node] = min(int(room[node]), left)
            left -= int(counts[node])
        return counts

    return fits


@st.composite
def trees(draw: st.DrawFn, most: int = 9, resources: Sequence[str] = BOTH) -> QueueTree:
    """Valid trees: guarantees are made to fit from the leaves up."""
    count = draw(st.integers(1, most))
    parents = [draw(st.none() | st.integers(0, k - 1)) if k else None for k in range(count)]
    leaves = set(range(count)) - {p for p in parents if p is not None}
    specs = []
    for k, parent in enumerate(parents):
        leaf = k in leaves
        kind = draw(st.sampled_from(["pooled", "pooled", "exclusive", "public"])) if leaf else "pooled"
        given: dict[str, dict[str, float]] = {"guarantee": {}, "lend": {}, "borrow": {}}
        if leaf and kind != "public":
            given["guarantee"] = {r: draw(st.integers(0, 8)) for r in resources if draw(st.booleans())}
            given["lend"] = {r: draw(st.integers(0, 8)) for r in resources if draw(st.integers(0, 3)) == 0}
        if kind != "exclusive":
            given["borrow"] = {r: draw(st.integers(0, 20)) for r in resources if draw(st.integers(0, 3)) == 0}
        specs.append(
            QueueSpec(
                f"q{k}", None if parent is None else f"q{parent}", draw(st.integers(1, 5)), kind, **given
            )
        )
    return QueueTree.of(specs, resources)


def leaves(tree: QueueTree) -> list[int]:
    return [k for k in range(1, len(tree)) if not tree.children[k]]
