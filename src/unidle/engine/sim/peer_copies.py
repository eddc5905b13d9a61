"""Copies of a gang's state in the memory of peers: each node's is on the next node of the gang. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from unidle.engine.sim.contention import Key


@dataclass(slots=True)
class _Kept:
    key: Key
    step: int
    ring: tuple[str, ...]
    gone: set[str] = field(default_factory=set)


class PeerCopies:
    """What of each job's last copies is still there. A node that broke has lost its memory, repaired or not."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def keep(self, key: Key, step: int, nodes: Iterable[str]) -> None:
        """The attempt makes no progress, and its nodes, in the order of ranks, hold its state of ``step``."""
        old = self._kept.get(key[0])
        if old is None or old.key != key:
            self._kept[key[0]] = _Kept(key, step, tuple(dict.fromkeys(nodes)))

    def broke(self, node: str) -> None:
        for kept in self._kept.values():
            if node in kept.ring:
                kept.gone.add(node)

    def step(self, job: str) -> int:
        """The step that can be had from memory; 0 where a node and the one with its copy are both gone."""
        kept = self._kept.get(job)
        if kept is None:
            return 0
        ring, gone = kept.ring, kept.gone
        lost = any(node in gone and ring[(k + 1) % len(ring)] in gone for k, node in enumerate(ring))
        return 0 if lost else kept.step
