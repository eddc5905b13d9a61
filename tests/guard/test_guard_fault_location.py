"""Who is behind connections that do not work: a rank, a node, the link between two, or nobody that can be told."""

from __future__ import annotations

import pytest

from unidle.guard.fault_location import at_fault
from unidle.jobs.vitals import Pair

NODES = ["n1", "n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("bad", "fine", "nodes", "rank"),
    [
        ([(2, 3), (0, 3)], [], NODES, 3),  # nothing passes to and from n3
        ([(0, 2), (1, 3)], [], NODES, 0),  # n1: which of its two ranks is not the question
        ([(0, 2), (1, 2)], [], NODES, None),  # the link n1-n2, or either end
        ([(0, 2), (1, 2)], [(2, 3)], NODES, None),  # n2 reaches n3: the link
        ([(0, 2), (2, 3)], [(1, 2)], NODES, 2),  # rank 1 reaches n2 on the same link as rank 0
        ([(0, 2), (2, 3), (0, 3)], [], NODES, None),  # the network
        ([(0, 1)], [], NODES, None),
        ([(0, 1), (1, 2)], [], (), 1),
        ([(0, 1), (1, 2)], [(1, 3)], (), None),  # it reaches others
        ([(0, 1), (0, 2), (0, 3)], [], ["n1"] * 4, 0),  # on one machine
        ([], [], NODES, None),
    ],
)
def test_blame_goes_to_what_all_bad_connections_have_in_common(
    bad: list[Pair], fine: list[Pair], nodes: list[str], rank: int | None
) -> None:
    assert at_fault(bad, fine, nodes) == rank
