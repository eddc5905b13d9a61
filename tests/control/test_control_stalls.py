"""Ranks that wait for a disk that does not answer."""

from __future__ import annotations

import pytest

from sim.worlds import S
from unidle.control.gangs.storage_stalls import STALLED_NS, stalls
from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.jobs.vitals import Doing, GangVitals, RankVitals
from view.telling import Telling

AT_NS = 200 * S


def look(telling: Telling, *ranks: tuple[Doing, float]) -> list[ev.Event]:
    """What follows from a look that finds each rank at this since so many seconds."""
    vitals = [RankVitals(k, doing, AT_NS - int(since_s * S)) for k, (doing, since_s) in enumerate(ranks)]
    found = []
    for event in stalls(telling.view, GangVitals("job", 1, AT_NS - S, AT_NS, tuple(vitals))):
        telling.tell(event)
        found.append(event)
    return found


@pytest.fixture
def telling() -> Telling:
    return Telling(2).at(100).submit("job", ranks=2).place("job", "n0/0", "n0/1").at(200)


def test_one_wait_without_an_end_is_told_once_with_rank_and_node(telling: Telling) -> None:
    assert look(telling, ("disk", 1), ("running", 50)) == []
    [verdict] = look(telling, ("network", 20), ("disk", STALLED_NS / S))
    assert isinstance(verdict, ev.VerdictReached)
    assert (verdict.kind, verdict.rank, verdict.node, verdict.acts) == ("storage", 1, "n0", False)
    assert verdict.onset_ns == AT_NS - STALLED_NS
    assert look(telling, ("network", 30), ("disk", 30)) == []


def test_it_is_over_when_the_disk_answers(telling: Telling) -> None:
    look(telling, ("disk", 11), ("disk", 12))
    assert [type(e) for e in look(telling, ("running", 0), ("running", 0))] == [ev.VerdictOver]
    assert look(telling, ("running", 1), ("running", 1)) == []
    assert telling.view.jobs["job"].attempts[0].verdict is None


def test_a_verdict_of_another_kind_is_not_ended_by_it(telling: Telling) -> None:
    look(telling, ("disk", 11), ("disk", 12))
    hang = ev.VerdictReached("job", 1, "hang", AT_NS, AT_NS, False, Reason("hang", "it hangs"), 0, "n0")
    telling.tell(hang)
    assert look(telling, ("running", 0), ("running", 0)) == []
    standing = telling.view.jobs["job"].attempts[0].verdict
    assert standing is not None and standing.kind == "hang"


def test_a_stall_that_became_a_hang_ends_after_it(telling: Telling) -> None:
    look(telling, ("disk", 11), ("disk", 12))
    telling.tell(
        ev.VerdictReached("job", 1, "hang", AT_NS, AT_NS, False, Reason("hang", "it hangs"), 0, "n0")
    )
    assert look(telling, ("running", 0), ("running", 0)) == []
    telling.tell(ev.VerdictOver("job", 1, Reason("over", "over: it hangs")))
    [over] = look(telling, ("running", 0), ("running", 0))
    assert isinstance(over, ev.VerdictOver) and "storage" in over.because.text
    assert all(verdict.over_ns is not None for verdict in telling.view.jobs["job"].attempts[0].verdicts)
