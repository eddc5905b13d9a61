"""Continuous profiles of hosts: what agents send is of their own ranks, on the controller's clock, and kept in its store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control.test_control_agent_signs import AHEAD_NS, Offsets, peer
from sim.worlds import S
from unidle import wire
from unidle.clock import VirtualClock
from unidle.control.gangs.host_profiler import HostProfiler
from unidle.events import types as ev
from unidle.fleet.policies import ProfilePolicy
from unidle.hub import frames
from unidle.scope.continuous.process import ProfilerOrders
from unidle.store.open import open_store
from unidle.store.profiles import ProfileRow, ProfileShelf
from view.telling import Telling
from waiting import wait_until

POLICY = ProfilePolicy(on=True)


class World:
    """A profiler of hosts with a store, and two hosts with a rank each."""

    def __init__(self, place: Path) -> None:
        address = str(place / "s.db")
        self.store = open_store(address, create=True)
        orders = ProfilerOrders(address, "", self.store.acquire("test").token, 0, POLICY)
        self.orders: list[tuple[str, str, dict[str, Any], Callable[[frames.Done], None]]] = []
        self.profiler = HostProfiler(orders, place / "err", self._ask, Offsets(), VirtualClock(200 * S))
        self.view = Telling(1, 2).at(100).submit("job", ranks=2).place("job", "n0/0", "n1/0").at(200).view

    def _ask(self, node: str, what: str, body: dict[str, Any], answer: Callable[[frames.Done], None]) -> None:
        self.orders.append((node, what, body, answer))

    def hears(self, *bodies: dict[str, Any], node: str = "n0", kind: str = "agent") -> list[ev.Event]:
        for body in bodies:
            self.profiler.hear(peer(kind, node), frames.Seen(wire.PROFILING, body))
        return list(self.profiler.take(self.view))

    def close(self) -> None:
        self.profiler.close()
        self.store.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path)) as made:
        yield made


def event(one: ev.Event) -> dict[str, Any]:
    kind, body = ev.encode(one)
    return {"kind": kind, "event": msgspec.json.decode(body)}


def row(rank: int = 0, end_s: int = 152) -> dict[str, Any]:
    made = ProfileRow("job", 150 * S, 1, rank, end_s * S, 1, b"a profile")
    return {"row": msgspec.to_builtins(made._asdict())}


def test_an_agent_gets_its_order_with_its_first_rank_once_on_each_connection(world: World) -> None:
    for _ in range(2):
        world.profiler.hear(peer(), frames.Seen(wire.VITALS, {}))
    [(node, what, body, answer)] = world.orders
    assert (node, what, body["policy"]["hz"]) == ("n0", wire.PROFILING, POLICY.hz)
    world.profiler.hear(msgspec.structs.replace(peer(), id=2), frames.Seen(wire.VITALS, {}))
    assert len(world.orders) == 2
    answer(frames.Done(1, False, "it is old"))  # of the connection before
    assert list(world.profiler.take(world.view)) == []
    world.orders[1][3](frames.Done(2, False, "'profiling' is unknown to this release"))
    [said] = world.profiler.take(world.view)
    assert said == ev.ProfilerSet("host n0: 'profiling' is unknown to this release")


def test_what_an_agent_measures_counts_for_its_own_ranks_in_the_controllers_time(world: World) -> None:
    leaves = {0: {"data_stall": S}, 1: {"data_stall": S}}
    budget = ev.BudgetMeasured("job", 1, 150 * S, 152 * S, leaves)
    steps = ev.StepsWatched("job", 1, 150 * S, 152 * S, {0: (151 * S,), 1: ()})
    found = world.hears(event(budget), event(steps))
    begin, end = 150 * S + AHEAD_NS, 152 * S + AHEAD_NS
    assert found == [
        ev.BudgetMeasured("job", 1, begin, end, {0: leaves[0]}),
        ev.StepsWatched("job", 1, begin, end, {0: (151 * S + AHEAD_NS,)}),
    ]
    assert world.hears(event(budget), node="n2") == []
    assert world.hears(event(budget), kind="box") == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "row"},
        {"kind": "job_submitted", "event": {}},
        {"kind": "budget_measured", "event": {"job": "job"}},
        {"row": {"job": "job"}},
        row(end_s=150),
        row(end_s=200),
        event(ev.BudgetMeasured("job", 1, 150 * S, 199 * S, {0: {"data_stall": S}})),
        event(ev.BudgetMeasured("job", 1, 150 * S, 152 * S, {0: {"data_stall": -S}})),
        event(ev.BudgetMeasured("job", 7, 150 * S, 152 * S, {0: {"data_stall": S}})),
        event(ev.BudgetMeasured("no", 1, 150 * S, 152 * S, {0: {"data_stall": S}})),
        event(ev.StepsWatched("job", 1, 150 * S, 152 * S, {0: (1,)})),
    ],
)
def test_what_is_not_as_agreed_is_passed_over(world: World, body: dict[str, Any]) -> None:
    assert world.hears(body) == [] and world.profiler._keeper.pid is None


def test_profiles_of_own_ranks_are_written_to_the_store_by_a_process(world: World) -> None:
    assert world.hears(row(rank=1), row(rank=0)) == []
    shelf = ProfileShelf(world.store)
    [kept] = wait_until(lambda: list(shelf.rows("job", 0, 2**62)), 60)
    assert kept == ProfileRow("job", 150 * S + AHEAD_NS, 1, 0, 152 * S + AHEAD_NS, 1, b"a profile")


def test_why_hosts_are_not_profiled_is_one_line_and_ends_with_the_last_of_them(world: World) -> None:
    assert world.hears(event(ev.ProfilerSet("not permitted"))) == [ev.ProfilerSet("host n0: not permitted")]
    [said] = world.hears(event(ev.ProfilerSet("killed")), node="n1")
    assert said == ev.ProfilerSet("host n0: not permitted (and 1 other host)")
    world.view.profiler = said.why_not
    assert world.hears(event(ev.ProfilerSet("")), node="n1") == [ev.ProfilerSet("host n0: not permitted")]
    assert world.hears(event(ev.ProfilerSet(""))) == [ev.ProfilerSet("")]
