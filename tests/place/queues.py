"""Trees of queues and ways to fit a gang, for the tests of queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from unidle.fleet.queues import QueueSpec
from unidle.place import scheduler
from unidle.place.model import Demand, Domains, Fits, Ints, Mask, RoundRules, Running
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.pending import PendingJobs
from unidle.place.queue.state import Allocations
from unidle.place.queue.tree import QueueTree
from unidle.place.session import Draft, Session

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


class OnDevices(Session):
    """A decision on devices alone, with the answers of a test."""

    def __init__(self, *given: Any, **answers: Callable[..., Any]) -> None:
        super().__init__(*given)
        self.parts = answers.pop("parts", None)  # type: ignore[assignment]
        self.together = "allowed" in answers
        self._answers = answers

    def fits(self, demand: Demand | Running) -> Fits:
        found: Fits = self._answers["fits"](demand)
        return found

    def _answer(self, what: str, *given: Any) -> Any:
        known = self._answers.get(what)
        return getattr(super(), what)(*given) if known is None else known(*given)

    def domains(self, demand: Demand) -> Domains | None:
        return self._answer("domains", demand)

    def allowed(self, demand: Demand) -> Mask | None:
        return self._answer("allowed", demand)

    def find(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        return self._answer("find", demand, room)

    def ready(self, job: str) -> bool:
        return self._answer("ready", job)


def decide(
    state: Allocations, pending: PendingJobs, fits: Callable[[Demand], Fits], now_ns: int,
    rules: RoundRules | None = None, **answers: Any,
) -> Draft:  # fmt: skip
    """Decide on all jobs that wait, and carry it out."""
    draft = scheduler.decide(OnDevices(state, pending, now_ns, rules, fits=fits, **answers))
    state.log.commit()
    for start in draft.starts:
        pending.leave(start.job)
    return draft
