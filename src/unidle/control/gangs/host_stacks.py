"""Stacks of ranks on hosts: their agents read them, each those of its own host."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

import msgspec

from unidle import wire
from unidle.events.guard import RankStack
from unidle.hub import frames
from unidle.hub.refusals import printable
from unidle.scope.stack_process import joined
from unidle.view.jobs import AttemptView

LIMIT_NS: Final = 3_000_000_000
READY_AGAIN_NS: Final = 10_000_000_000  # agents keep a process ready for longer
_WHY_CHARS: Final = 200


class AskAgent(Protocol):
    """Gives the agent of a node an order; ``answer`` is called once, in the loop."""

    def __call__(
        self, node: str, what: str, body: dict[str, Any], answer: Callable[[frames.Done], None]
    ) -> None: ...


class HostStackReading:
    """The stacks of one attempt, as its hosts send them. ``places``: the node of each rank."""

    def __init__(self, ask: AskAgent, job: str, attempt: int, places: list[str]) -> None:
        self._ranks: dict[str, list[int]] = {}
        for rank, node in enumerate(places):
            self._ranks.setdefault(node, []).append(rank)
        self._found: dict[str, list[RankStack]] = {}
        for node, ranks in self._ranks.items():
            body = {"job": job, "attempt": attempt, "ranks": ranks}
            ask(node, wire.STACKS, body, lambda done, node=node: self._answered(node, done))  # type: ignore[misc]

    def _answered(self, node: str, done: frames.Done) -> None:
        ranks = self._ranks[node]
        why = done.why or "its host is not connected any more"
        if done.ok:
            try:
                found = msgspec.convert(done.data.get("stacks"), list[RankStack])
                self._found[node] = [one for one in found if set(one.ranks) <= set(ranks)]
                return
            except msgspec.ValidationError as error:
                why = f"the answer is not as agreed: {error}"
        why_not = f"host {node}: {printable(why)[:_WHY_CHARS]}"
        self._found[node] = [RankStack(tuple(ranks), "unknown", why_not=why_not)]

    @property
    def stacks(self) -> list[RankStack]:
        return joined([one for found in self._found.values() for one in found])

    def ended(self) -> bool:
        """Whether all hosts have answered."""
        return len(self._found) == len(self._ranks)

    def end(self) -> None:
        """Nothing to do: agents bound the time themselves, and what comes later is of no use."""


class HostStacks:
    """Of gangs on hosts (:class:`unidle.control.gangs.stacks.StackSource`)."""

    limit_ns: Final = LIMIT_NS

    def __init__(self, ask: AskAgent) -> None:
        self._ask = ask
        self._ready_ns: dict[str, int] = {}  # by node: when its agent was last asked to be ready

    def prepare(self, now_ns: int, nodes: Collection[str]) -> None:
        for node in nodes:
            if now_ns - self._ready_ns.get(node, 0) >= READY_AGAIN_NS:
                self._ready_ns[node] = now_ns
                self._ask(node, wire.STACKS, {}, lambda _: None)

    def begin(self, job: str, attempt: AttemptView) -> HostStackReading:
        return HostStackReading(self._ask, job, attempt.number, [place.node for place in attempt.places])

    def tidy(self, now_ns: int) -> None:
        self._ready_ns = {n: at for n, at in self._ready_ns.items() if now_ns - at < READY_AGAIN_NS}

    def close(self) -> None:
        """Nothing is left running here."""
