"""How gangs that share an uplink slow each other down. Pure; integers in parts per million.

The model: the fleet's tree gives every vertex (node, leaf, spine, ...) one uplink. A gang crosses
the uplink of each vertex that holds some of its nodes and not all of them; a gang on one node
crosses none. Of the time of a step of gang ``g`` alone, the part ``c_g`` is communication between
nodes, bound by the slowest uplink that it crosses; a faster uplink ``l`` is busy with it for
``w_gl * c_g``, where ``w_gl`` is the slowest crossed bandwidth over that of ``l``. Flows that are
on an uplink at once share it equally (processor sharing), and a gang meets another one's flow with
the probability that it is there, so that its communication over ``l`` takes

    w_gl * (1 + sum of w_hl * c_h over the other gangs h on l)

times as long, and the whole step, bound by the worst uplink, ``1 + c_g * (max over l - 1)`` times.
Two gangs that only communicate, on one uplink, take twice as long; where the others hardly
communicate nothing changes. What the model leaves out: the others' flows become longer too, and
flows can be interleaved on purpose; the one makes it optimistic, the other pessimistic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from unidle.fleet import Fleet

WHOLE: Final = 1_000_000
DEFAULT_UPLINK_BPS: Final = 100_000_000_000
"""Of an uplink whose bandwidth the fleet does not declare: modelled, like all of this."""

Key = tuple[str, int]


@dataclass(slots=True)
class _Flow:
    comm_ppm: int
    weights: dict[str, int]  # crossed uplink (named by its lower end) -> w in ppm


class Network:
    """Who crosses which uplink now, and what that does to everyone's steps."""

    def __init__(self, fleet: Fleet) -> None:
        self._parent: dict[str, str | None] = {t.id: t.parent for t in fleet.tiers}
        self._parent.update({n.id: n.parent or None for n in fleet.nodes})
        declared = {frozenset((k.a, k.b)): k.bandwidth_bps for k in fleet.links}
        self._bps = {
            v: declared.get(frozenset((v, parent)), DEFAULT_UPLINK_BPS)
            for v, parent in self._parent.items()
            if parent is not None
        }
        self._flows: dict[Key, _Flow] = {}
        self._on: dict[str, dict[Key, int]] = {}  # uplink -> gangs on it and how busy each keeps it, in ppm
        self._load: dict[str, int] = {}

    def join(self, gang: Key, nodes: Iterable[str], comm_ppm: int) -> list[Key]:
        """A gang begins to run on ``nodes``. Returns the gangs whose steps may take another time now."""
        crossed = self._crossed(list(dict.fromkeys(nodes)))
        if not crossed or not comm_ppm:
            return []
        slowest = min(self._bps.get(v, DEFAULT_UPLINK_BPS) for v in crossed)
        flow = _Flow(comm_ppm, {v: slowest * WHOLE // self._bps.get(v, DEFAULT_UPLINK_BPS) for v in crossed})
        self._flows[gang] = flow
        met: dict[Key, None] = {}
        for uplink, weight in flow.weights.items():
            on = self._on.setdefault(uplink, {})
            on[gang] = weight * comm_ppm // WHOLE
            self._load[uplink] = self._load.get(uplink, 0) + on[gang]
            met.update(dict.fromkeys(on))
        return list(met)

    def leave(self, gang: Key) -> list[Key]:
        """The gang sends nothing any more. Returns those who shared an uplink with it."""
        flow = self._flows.pop(gang, None)
        met: dict[Key, None] = {}
        for uplink in flow.weights if flow else ():
            on = self._on[uplink]
            self._load[uplink] -= on.pop(gang)
            met.update(dict.fromkeys(on))
        return list(met)

    def stretch_ppm(self, gang: Key) -> int:
        """How much longer a step of the gang takes now than alone; 1,000,000 is as long."""
        flow = self._flows.get(gang)
        if flow is None:
            return WHOLE
        worst, load, on = WHOLE, self._load, self._on
        for uplink, weight in flow.weights.items():
            others = load[uplink] - on[uplink][gang]
            if others and weight * (WHOLE + others) // WHOLE > worst:
                worst = weight * (WHOLE + others) // WHOLE
        return WHOLE + flow.comm_ppm * (worst - WHOLE) // WHOLE

    def _crossed(self, nodes: list[str]) -> list[str]:
        """Vertices that hold some, and not all, of the nodes."""
        if len(nodes) < 2:
            return []
        counts: dict[str, int] = {}
        for node in nodes:
            vertex: str | None = node
            while vertex is not None:
                counts[vertex] = counts.get(vertex, 0) + 1
                vertex = self._parent.get(vertex)
        return [vertex for vertex, count in counts.items() if count < len(nodes)]
