"""Stacks of a gang on several hosts: what their agents answer becomes one event, whatever some of them answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
import pytest

from unidle.control.gangs.host_stacks import LIMIT_NS, READY_AGAIN_NS, HostStacks
from unidle.control.gangs.stacks import GangStacks
from unidle.events import types as ev
from unidle.hub import frames
from unidle.view.jobs import AttemptView
from view.telling import Telling

S = 1_000_000_000
WAITS = ev.RankStack((0,), "collective", "in all_reduce at t.py:4 (main)", ("main (t.py:4)",))


class Agents:
    """Keeps the orders, to be answered by the test."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, dict[str, Any], Callable[[frames.Done], None]]] = []

    def ask(self, node: str, what: str, body: dict[str, Any], answer: Callable[[frames.Done], None]) -> None:
        assert what == "stacks"
        self.orders.append((node, body, answer))

    def answer(self, node: str, *stacks: ev.RankStack, why: str = "") -> None:
        [answer] = [answer for name, _, answer in self.orders if name == node]
        answer(frames.Done(1, not why, why, {"stacks": msgspec.to_builtins(stacks)}))


@pytest.fixture
def attempt() -> AttemptView:
    telling = Telling(1, 2).at(100).submit("job", ranks=3).place("job", "n0/0", "n1/0", "n1/1").at(200)
    return telling.view.jobs["job"].attempts[0]


def rank(number: int, stack: ev.RankStack = WAITS) -> ev.RankStack:
    return msgspec.structs.replace(stack, ranks=(number,))


def test_each_host_is_asked_for_its_ranks_and_their_answers_are_one(attempt: AttemptView) -> None:
    agents = Agents()
    with closing(GangStacks(HostStacks(agents.ask))) as looks:
        looks.begin("job", attempt, 5 * S)
        asked = {node: body for node, body, _ in agents.orders}
        assert asked == {
            "n0": {"job": "job", "attempt": 1, "ranks": [0]},
            "n1": {"job": "job", "attempt": 1, "ranks": [1, 2]},
        }
        agents.answer("n0", WAITS)
        assert list(looks.take(5 * S)) == []
        stopped = ev.RankStack((1,), "stopped", "at d.py:2 (load)")
        agents.answer("n1", stopped, rank(2), rank(0, stopped))  # which is not its own
        [event] = looks.take(5 * S)
    assert event.odd == (1,)
    assert set(event.stacks) == {msgspec.structs.replace(WAITS, ranks=(0, 2)), stopped}


@pytest.mark.parametrize("why", ["", "its host is not connected", "'stacks' is unknown to this release"])
def test_a_host_that_gives_no_answer_leaves_its_ranks_unknown_with_the_reason(
    attempt: AttemptView, why: str
) -> None:
    agents = Agents()
    with closing(GangStacks(HostStacks(agents.ask))) as looks:
        looks.begin("job", attempt, 5 * S)
        agents.answer("n0", WAITS)
        [answer] = [answer for node, _, answer in agents.orders if node == "n1"]
        answer(frames.Done(1, False, why))
        [event] = looks.take(5 * S)
    assert event.stacks[-1].ranks == (1, 2)
    assert event.stacks[-1].state == "unknown"
    assert event.stacks[-1].why_not == f"host n1: {why or 'its host is not connected any more'}"
    assert event.odd == ()


def test_what_is_no_answer_and_what_comes_too_late_hold_nothing_up(attempt: AttemptView) -> None:
    agents = Agents()
    with closing(GangStacks(HostStacks(agents.ask))) as looks:
        assert looks.holds("job", attempt, 5 * S)
        [answer] = [answer for node, _, answer in agents.orders if node == "n0"]
        answer(frames.Done(1, True, data={"stacks": [{"ranks": "x"}]}))
        assert list(looks.take(5 * S + LIMIT_NS - 1)) == []
        [event] = looks.take(5 * S + LIMIT_NS)
        assert not looks.holds("job", attempt, 9 * S)
    assert {stack.ranks: stack.state for stack in event.stacks} == {(0,): "unknown", (1, 2): "unknown"}
    assert "not as agreed" in event.stacks[0].why_not
    assert "did not end in time" in event.stacks[1].why_not


def test_agents_are_asked_to_be_ready_now_and_then(attempt: AttemptView) -> None:
    agents = Agents()
    with closing(GangStacks(HostStacks(agents.ask))) as looks:
        for now_ns in (100 * S, 101 * S, 100 * S + READY_AGAIN_NS):
            looks.prepare(attempt, now_ns)
        assert not looks.pending
    assert sorted(node for node, _, _ in agents.orders) == ["n0", "n0", "n1", "n1"]
    assert all(body == {} for _, body, _ in agents.orders)
