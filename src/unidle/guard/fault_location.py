"""From connections that do not work to who is behind it: a node, or the link between two. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from unidle.jobs.vitals import Pair


def at_fault(bad: Collection[Pair], fine: Collection[Pair], nodes: Sequence[str]) -> int | None:
    """A rank on the node that all ``bad`` connections have in common; None where it is a link, or cannot be determined.

    ``fine`` are connections that work, ``nodes`` where each rank is (none given: each on a node of its own). A node is
    at fault when nothing works between it and two or more others; with one other it is as likely that one, or the link.
    """
    across = {link for pair in bad if len(link := _link(pair, nodes)) == 2}
    works = {_link(pair, nodes) for pair in fine}
    if not across or across & works:  # within a node, or others on the same link get through
        return _rank_of_all(bad)
    counts = Counter(node for link in across for node in link)
    common = [node for node, count in counts.items() if count == len(across) > 1]
    if len(common) != 1 or any(common[0] in link for link in works if len(link) == 2):
        return None
    return min(end for pair in bad for end in pair if _node(end, nodes) == common[0])


def _link(pair: Pair, nodes: Sequence[str]) -> frozenset[str]:
    return frozenset(_node(end, nodes) for end in pair)


def _node(rank: int, nodes: Sequence[str]) -> str:
    return nodes[rank] if rank < len(nodes) else f"rank {rank}"


def _rank_of_all(pairs: Collection[Pair]) -> int | None:
    """The rank that is at one end of all, where they are two or more."""
    counts = Counter(end for pair in pairs for end in pair)
    every = [rank for rank, count in counts.items() if count == len(pairs) > 1]
    return every[0] if len(every) == 1 else None
