"""Hot spares, whatever fleet and jobs users declare: as many as were there stay, for who comes back after a fault."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from loop.test_loop_invariants import Twice
from loop.test_loopcheck import feed
from loop.wide import File, wide_worlds, world_of
from loop.widecheck import WideChecker
from loop.worlds import live
from loopcheck import Checker, Violation
from share.cutting import check_ledger
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.fleet.spares import alike_nodes
from unidle.jobs import RankPlace, Reason

some = settings(max_examples=int(os.environ.get("UNIDLE_WIDE_EXAMPLES", "40")), deadline=None)
WHY = Reason("x", "x")


@st.composite
def spare_worlds(draw: st.DrawFn) -> File:
    """A world of two nodes at least, some of which are kept: so many of each kind where all kinds have enough, else one."""
    file = draw(wide_worlds().filter(lambda file: len(file["fleet"]["nodes"]) > 1))
    groups = alike_nodes(fleet_from_mapping(_hardware(file["fleet"]), "fleet").nodes)
    least = min(len(names) for names in groups.values())
    counts = list(range(1, least))
    names = [node["id"] for node in file["fleet"]["nodes"]]
    spares = draw(st.sampled_from([*counts, [draw(st.sampled_from(names))]]))
    file["fleet"]["guard"] = {"preflight": "off", "spares": spares}
    for ask in file["asks"]:
        ask["job"].setdefault("restart", {"max": 3, "backoff_s": draw(st.sampled_from([0, 5]))})
    return file


def _hardware(fleet: File) -> File:
    return {key: value for key, value in fleet.items() if key in ("nodes", "tiers")}


@some
@given(spare_worlds())
def test_fresh_starts_never_leave_fewer_spares_than_are_kept(file: File) -> None:
    """Checked at every start (``Checker._spares_stay``); the same twice, and no device time is lost or counted twice."""
    try:
        world = world_of(file)
    except BadInput:  # amounts that contradict each other
        reject()
    check_ledger(live(world, policy=Twice, checker=WideChecker()).store)


# -- the checker itself --------------------------------------------------------------------------------


def fleet(spares: Any) -> ev.FleetSeen:
    nodes = [{"id": "n[0-2]", "devices": {"count": 1, "kind": "gpu"}}]
    return ev.FleetSeen(
        fleet_from_mapping({"nodes": nodes, "guard": {"preflight": "off", "spares": spares}}, "fleet")
    )


def job(name: str, **more: object) -> ev.JobSubmitted:
    return ev.JobSubmitted(name, job_from_mapping({"command": ["x"], "device": "gpu", **more}, name, "."))


def placed(name: str, *nodes: str) -> ev.AttemptPlaced:
    places = tuple(RankPlace(k, node, (f"{node}/0",)) for k, node in enumerate(nodes))
    return ev.AttemptPlaced(name, 1, places, WHY)


@pytest.mark.parametrize(
    "events",
    [
        [fleet(["n1"]), job("a"), placed("a", "n1")],
        [fleet(1), job("a", ranks=3), placed("a", "n0", "n1", "n2")],
        [fleet(2), job("a"), placed("a", "n0"), job("b"), placed("b", "n1")],
        [fleet(2), job("a", preemption="low", min_runtime_s=5, ranks=2), placed("a", "n0", "n2")],
    ],
    ids=["named", "all", "one after the other", "not at once"],
)
def test_a_log_in_which_a_spare_is_taken_is_found_out(events: list[ev.Event]) -> None:
    with pytest.raises(Violation, match="spares"):
        feed(Checker(), events)


def test_filler_may_be_on_a_spare() -> None:
    feed(Checker(), [fleet(["n1"]), job("a", preemption="low"), placed("a", "n1")])
