"""One look at a gang, from those that the agents of its hosts send of the ranks there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import msgspec

from unidle.jobs.vitals import GangVitals, LinkVitals, RankVitals, as_one, continued, moved, stretched

_RANKS_A_LOOK = (
    512  # of a gang with more ranks, so many looks fewer are made: a look costs the more the more it has
)
_LOOK_NS = 500_000_000
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
    _ends: dict[str, dict[str, int]] = field(default_factory=dict)  # by node: addresses of its ranks' links
    _at_ns: int = 0  # the end of the last look

    def add(self, node: str, seen: GangVitals, ranks: Collection[int]) -> None:
        """The ranks of a node were observed; only ``ranks`` are there."""
        seen = replace(seen, ranks=tuple(rank for rank in seen.ranks if rank.rank in ranks))
        before = self._waiting.get(node)
        if before is not None and before.at_ns >= seen.at_ns:
            return  # an older one
        self._waiting[node] = seen if before is None else continued(before, seen)
        if seen.links_read:
            self._ends[node] = {end: rank.rank for rank in seen.ranks for end in rank.ends}

    def complete(self, live: dict[int, str]) -> GangVitals | None:
        """The look at all ``live`` ranks (rank -> node); None while one of them was not seen.

        A host without an agent keeps a gang from being judged: its ranks may be at work.
        """
        looks = {node: self._waiting.get(node) for node in dict.fromkeys(live.values())}
        parts = [look for look in looks.values() if look is not None]
        if not parts or len(parts) < len(looks):
            return None
        at_ns = max(look.at_ns for look in parts)
        if at_ns - self._at_ns < _LOOK_NS * (len(live) // _RANKS_A_LOOK):
            return None
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


def _linked(rank: RankVitals, ends: dict[str, dict[str, int]], *, alone: bool) -> RankVitals:
    """With the ranks on other hosts at the other ends of its links. What leads elsewhere counts for a gang that is ``alone`` on its host."""
    found: dict[int, LinkVitals] = {}
    for link in rank.links:
        peers = (of[link.to] for of in ends.values() if link.to in of)
        peer = link.peer if link.peer >= 0 else next(peers, -1)
        if peer >= 0 or alone:
            found[peer] = as_one(found.get(peer), replace(link, peer=peer, to=""))
    return replace(rank, links=tuple(found[peer] for peer in sorted(found)), ends=())
