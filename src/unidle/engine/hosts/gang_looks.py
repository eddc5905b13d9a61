"""One look at a gang, from those that the agents of its hosts send of the ranks there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import msgspec

from unidle.jobs.vitals import GangVitals, LinkVitals, RankVitals, as_one, continued, moved, stretched

_AGAIN_NS = 500_000_000  # between two counts of what is missing
_AHEAD_NS = 1_000_000_000  # as far as the offset of a host's clock may be wrong


def look_of(body: dict[str, object], offset_ns: int, now_ns: int) -> GangVitals | None:
    """What an agent sent, on the controller's clock.

    None where it is nothing of the kind, as from a newer release, or of a time that is not over yet.
    """
    try:
        seen = msgspec.convert(body, GangVitals)
    except msgspec.ValidationError:
        return None
    from_ns, at_ns = seen.from_ns + offset_ns, seen.at_ns + offset_ns
    if not 0 <= from_ns <= at_ns <= now_ns + _AHEAD_NS:
        return None
    at_ns = min(at_ns, now_ns)  # what is logged of it is not later than the log
    ranks = tuple(moved(rank, offset_ns) for rank in seen.ranks)
    if any(
        not 0 <= time_ns <= now_ns + _AHEAD_NS for rank in ranks for time_ns in (rank.since_ns, rank.stuck_ns)
    ):
        return None
    return replace(seen, from_ns=min(from_ns, at_ns), at_ns=at_ns, ranks=ranks)


@dataclass(slots=True)
class GangLooks:
    """Of one attempt. The gang was observed once each of its live ranks was seen since the last time."""

    _waiting: dict[str, GangVitals] = field(default_factory=dict)  # by node
    _ends: dict[str, int] = field(default_factory=dict)  # of links between hosts: address -> rank
    _ends_of: dict[str, list[str]] = field(default_factory=dict)  # the same by node
    _at_ns: int = 0  # the end of the last look
    _needed: int = 0  # hosts with live ranks, when that was last counted
    _counted_ns: int = 0

    def add(self, node: str, seen: GangVitals, ranks: Collection[int]) -> None:
        """The ranks of a node were observed; only ``ranks`` are there."""
        seen = replace(seen, ranks=tuple(rank for rank in seen.ranks if rank.rank in ranks))
        before = self._waiting.get(node)
        if before is not None and before.at_ns >= seen.at_ns:
            return  # an older one
        self._waiting[node] = seen if before is None else continued(before, seen)
        if seen.links_read:
            for end in self._ends_of.get(node, ()):
                self._ends.pop(end, None)
            own = {end: rank.rank for rank in seen.ranks for end in rank.ends}
            self._ends |= own
            self._ends_of[node] = list(own)

    def due(self, now_ns: int) -> bool:
        """Whether :meth:`complete` may have an answer: not asked for each host of a gang on a thousand."""
        return len(self._waiting) >= self._needed or now_ns - self._counted_ns >= _AGAIN_NS

    def complete(self, live: dict[int, str], now_ns: int) -> GangVitals | None:
        """The look at all ``live`` ranks (rank -> node); None while one of them was not seen.

        A host without an agent keeps a gang from being judged: its ranks may be at work.
        """
        looks = {node: self._waiting.get(node) for node in dict.fromkeys(live.values())}
        self._needed, self._counted_ns = len(looks), now_ns
        parts = [look for look in looks.values() if look is not None]
        if not parts or len(parts) < len(looks):
            return None
        at_ns = max(look.at_ns for look in parts)
        from_ns = self._at_ns or min(look.from_ns for look in parts)
        ranks = {
            rank.rank: stretched(rank, look.at_ns - look.from_ns, at_ns - from_ns)
            for look in parts
            for rank in (_linked(one, self._ends, alone=len(parts) == 1) for one in look.ranks)
        }
        if live.keys() - ranks.keys():
            return None
        self._at_ns = at_ns
        self._waiting.clear()
        return GangVitals(
            parts[0].job,
            parts[0].attempt,
            from_ns,
            at_ns,
            tuple(ranks[rank] for rank in sorted(live)),
            links_read=any(look.links_read for look in parts),
        )


def _linked(rank: RankVitals, ends: dict[str, int], *, alone: bool) -> RankVitals:
    """With the ranks on other hosts at the other ends of its links. What leads elsewhere counts for a gang that is ``alone`` on its host."""
    if not rank.links and not rank.ends:
        return rank
    found: dict[int, LinkVitals] = {}
    for link in rank.links:
        peer = link.peer if link.peer >= 0 else ends.get(link.to, -1)
        if peer >= 0 or alone:
            found[peer] = as_one(found.get(peer), replace(link, peer=peer, to=""))
    return replace(rank, links=tuple(found[peer] for peer in sorted(found)), ends=())
