"""What agents see of ranks and devices: one look at a gang, and one answer whether it works, from those of its hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine_hosts.scripted_hub import ScriptedHub, fleet, gang_of, node_of
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import StopGang, Utilised, WatchGang
from unidle.events.marks import Mark
from unidle.hub import frames
from unidle.jobs.vitals import GangVitals, LinkVitals, RankVitals, continued

OFFSET_NS = 77  # of each host's clock, in the scripted hub
WATCH = WatchGang("job", 1, gang_of().places, S, 50_000)


@pytest.fixture
def hub() -> Iterator[ScriptedHub]:
    made = ScriptedHub(fleet())
    yield made
    made.engine.close()


@pytest.fixture
def agents(hub: ScriptedHub) -> tuple[int, int]:
    """Of two hosts, each with a rank of a gang that runs."""
    found = hub.join("n1"), hub.join("n2")
    boxes = hub.running()
    for rank, box in enumerate(boxes):
        hub.marks(box, rank, 0, Mark("spawn", 1, pid=7, ticks=8))
    hub.after(0)
    return found


def rank_of(number: int, **more: Any) -> RankVitals:
    return RankVitals(number, "network", 5 * S, **more)


def seen(
    agent: int, hub: ScriptedHub, from_s: float, at_s: float, *ranks: RankVitals, attempt: int = 1
) -> None:
    look = GangVitals("job", attempt, int(from_s * S), int(at_s * S), ranks)
    hub.receive(agent, frames.Seen("vitals", msgspec.to_builtins(look)))


def looks(hub: ScriptedHub) -> list[GangVitals]:
    return [one for one in hub.after(0) if isinstance(one, GangVitals)]


def test_a_look_at_a_gang_has_the_ranks_of_all_its_hosts_on_the_controllers_clock(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    seen(agents[0], hub, 10, 11, rank_of(0, cpu_ns=S // 2))
    assert looks(hub) == []
    seen(agents[1], hub, 10.5, 11, rank_of(1, cpu_ns=S // 4, wakes_ns=20 * S))
    [look] = looks(hub)
    assert (look.from_ns, look.at_ns) == (10 * S + OFFSET_NS, 11 * S + OFFSET_NS)
    assert look.ranks == (
        RankVitals(0, "network", 5 * S + OFFSET_NS, S // 2),
        RankVitals(
            1, "network", 5 * S + OFFSET_NS, S // 2, wakes_ns=20 * S + OFFSET_NS
        ),  # half a core, as seen
    )


def test_looks_follow_each_other_without_a_gap_whenever_their_parts_come(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    seen(agents[0], hub, 10, 11, rank_of(0))
    seen(agents[1], hub, 10, 11, rank_of(1))
    seen(agents[0], hub, 11, 12, rank_of(0, cpu_ns=S))
    seen(agents[0], hub, 12, 13, rank_of(0))
    seen(agents[0], hub, 11, 12, rank_of(0, cpu_ns=S))  # late: it is known
    seen(agents[1], hub, 11, 13, rank_of(1, cpu_ns=S))
    one, other = looks(hub)
    assert one.at_ns == other.from_ns
    assert [rank.cpu_ns for rank in other.ranks] == [S, S]


def test_a_gang_is_not_judged_while_a_host_shows_nothing_of_its_ranks(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    hub.leave(agents[1])
    for second in range(10, 40):
        seen(agents[0], hub, second, second + 1, rank_of(0))
    assert looks(hub) == []
    again = hub.join("n2")
    seen(again, hub, 39, 40)  # it has not found the rank yet
    assert looks(hub) == []
    seen(again, hub, 40, 41, rank_of(1))
    [look] = looks(hub)
    assert (look.from_ns, look.at_ns) == (10 * S + OFFSET_NS, 41 * S + OFFSET_NS)


def test_a_rank_that_has_ended_is_waited_for_no_more(hub: ScriptedHub, agents: tuple[int, int]) -> None:
    box = next(peer for peer, link in hub.engine._core.boxes.of_peer.items() if link.node == "n2")
    hub.marks(box, 1, 1, Mark("exit", 2, code=1))
    seen(agents[0], hub, 10, 11, rank_of(0))
    [look] = looks(hub)
    assert [rank.rank for rank in look.ranks] == [0]


def test_an_agent_speaks_for_the_ranks_on_its_node_alone(hub: ScriptedHub, agents: tuple[int, int]) -> None:
    seen(agents[0], hub, 10, 11, rank_of(0), rank_of(1, cpu_ns=7))
    assert looks(hub) == []
    seen(agents[1], hub, 10, 11, rank_of(0, cpu_ns=7), rank_of(1))
    [look] = looks(hub)
    assert [rank.cpu_ns for rank in look.ranks] == [0, 0]


def test_what_is_no_look_or_of_no_attempt_is_passed_over(hub: ScriptedHub, agents: tuple[int, int]) -> None:
    hub.receive(agents[0], frames.Seen("vitals", {"job": "job", "attempt": 1, "ranks": "all"}))
    hub.receive(agents[0], frames.Seen("use", {"job": "job", "use": "often"}))
    seen(agents[0], hub, 10, 11, rank_of(0), attempt=9)
    later_s = hub.clock.now_ns() // S + 100
    for agent, begun_s, since_s in ((0, later_s, 5), (0, 12, 5), (0, 10, later_s), (0, -5, 5)):
        look = replace(rank_of(agent), since_ns=since_s * S)
        seen(agents[agent], hub, begun_s, later_s + 1 if begun_s == later_s else 11, look)
    seen(agents[1], hub, 10, 11, rank_of(1))
    assert looks(hub) == []


def test_links_to_addresses_outside_of_a_host_say_nothing_of_a_gang_on_several(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    seen(agents[0], hub, 10, 11, rank_of(0, links=(LinkVitals(-1, S, stuck=True),), stuck_ns=S))
    seen(agents[1], hub, 10, 11, rank_of(1))
    [look] = looks(hub)
    assert look.ranks[0].stuck == ()


def test_a_link_between_hosts_is_known_by_the_addresses_of_its_ends(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    here, there, elsewhere = "10.0.0.1:40000", "10.0.0.2:5000", "10.9.9.9:2049"
    links = (
        LinkVitals(-1, S // 4, stuck=True, to=there),
        LinkVitals(-1, S // 2, to=there),
        LinkVitals(-1, S, stuck=True, to=elsewhere),
    )
    seen(agents[0], hub, 10, 11, rank_of(0, links=links, stuck_ns=9 * S, ends=(here, "10.0.0.1:40001")))
    seen(agents[1], hub, 10, 11, rank_of(1, links=(LinkVitals(-1, 7, to=here),), ends=(there,)))
    [look] = looks(hub)
    assert look.ranks[0].links == (LinkVitals(1, S // 2, stuck=True),)
    assert look.ranks[0].stuck_ns == 9 * S + OFFSET_NS
    assert look.ranks[1].links == (LinkVitals(0, 7),)
    unread = GangVitals("job", 1, 11 * S, 12 * S, (rank_of(1),), links_read=False)
    seen(agents[0], hub, 11, 12, rank_of(0, links=links[:1], stuck_ns=9 * S, ends=(here,)))
    hub.receive(agents[1], frames.Seen("vitals", msgspec.to_builtins(unread)))
    [look] = looks(hub)
    assert look.ranks[0].stuck == (1,)


def test_two_observations_as_one_have_all_that_was_used_and_what_is_so_at_the_end() -> None:
    one = GangVitals("j", 1, 0, 1, (rank_of(0, cpu_ns=1, io_bytes=2, links=(LinkVitals(1, 3),)), rank_of(2)))
    last = replace(rank_of(0, cpu_ns=4, waiting_ns=5), doing="lock")
    both = continued(one, GangVitals("j", 1, 1, 2, (last, rank_of(1, cpu_ns=9)), links_read=False))
    assert (both.from_ns, both.at_ns, both.links_read) == (0, 2, True)
    assert both.ranks == (
        replace(last, cpu_ns=5, io_bytes=2, links=(LinkVitals(1, 3),)),
        rank_of(1, cpu_ns=9),
    )


# -- devices -----------------------------------------------------------------------------------------


def use(hub: ScriptedHub, agent: int, what: str, since_s: int, text: str = "") -> None:
    body = {"job": "job", "attempt": 1, "use": what, "since_ns": since_s * S, "text": text}
    hub.receive(agent, frames.Seen("use", body))


def uses(hub: ScriptedHub, seconds: float = 0, *heard: int) -> list[Utilised]:
    return [one for one in hub.after(seconds, *heard) if isinstance(one, Utilised)]


def orders(hub: ScriptedHub, agent: int) -> list[WatchGang]:
    return [msgspec.convert(run.body, WatchGang) for run in hub.sent(agent, frames.Run) if run.what == "use"]


def test_each_agent_measures_the_ranks_of_its_node_and_one_at_work_is_enough(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    hub.engine.watch(WATCH)
    hub.engine.watch(WATCH)
    for rank, agent in enumerate(agents):
        assert orders(hub, agent) == [replace(WATCH, places=WATCH.places[rank : rank + 1])]
    use(hub, agents[0], "quiet", 10)
    assert uses(hub) == []
    use(hub, agents[1], "quiet", 12)
    assert uses(hub) == [Utilised("job", 1, "quiet", 12 * S + OFFSET_NS)]
    use(hub, agents[0], "busy", 20)
    use(hub, agents[1], "busy", 21)
    assert uses(hub) == [Utilised("job", 1, "busy", 20 * S + OFFSET_NS)]
    hub.engine.watch(replace(WATCH, every_ns=0))
    assert [orders(hub, agent)[0].every_ns for agent in agents] == [0, 0]
    use(hub, agents[0], "quiet", 30)
    assert uses(hub) == []


def test_a_host_that_cannot_measure_makes_a_gang_unknown_and_not_quiet(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    hub.engine.watch(WATCH)
    use(hub, agents[0], "quiet", 10)
    hub.answer(agents[1], frames.Run, why="'use' is unknown to this release")
    [found] = uses(hub)
    assert (found.use, found.text) == ("unknown", "host n2: 'use' is unknown to this release")


def test_an_agent_that_is_away_for_a_moment_changes_nothing_and_is_asked_again(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    hub.engine.watch(WATCH)
    for agent in agents:
        use(hub, agent, "quiet", 10)
    assert [one.use for one in uses(hub)] == ["quiet"]
    hub.leave(agents[1])
    assert uses(hub, 1) == []
    again = hub.join("n2")
    hub.after(0)
    assert [order.places for order in orders(hub, again)] == [WATCH.places[1:]]
    hub.leave(again)
    [found] = uses(hub, 10, agents[0])
    assert (found.use, found.text) == ("unknown", "the agent of host n2 does not answer")


def test_an_attempt_that_is_released_is_measured_no_more(hub: ScriptedHub, agents: tuple[int, int]) -> None:
    hub.engine.watch(WATCH)
    hub.engine.stop(StopGang("job", 1, 2, 0))
    hub.engine.release("job", 1)
    assert [[order.every_ns for order in orders(hub, agent)] for agent in agents] == [[S, 0], [S, 0]]
    hub.join("n3", described=node_of("n3"))
    hub.after(0)


# -- readers -----------------------------------------------------------------------------------------


def read_by(hub: ScriptedHub, reader: int, node: str, what: str) -> frames.Done:
    hub.all_sent.clear()
    hub.receive(reader, frames.Ask(9, node, what, {"name": "x"}))
    hub.after(0)
    for to, frame in list(hub.all_sent):
        if isinstance(frame, frames.Run):
            hub.receive(to, frames.Done(frame.id, ok=True, data={"of": to, **frame.body}))
            hub.after(0)
    [done] = hub.sent(reader, frames.Done)
    assert done.id == 9
    return done


def test_a_reader_has_agents_make_profiles_and_give_them_no_other_order(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    reader = hub.join("reader", kind="reader")
    hub.after(0)
    done = read_by(hub, reader, "n2", "profile")
    assert (done.ok, done.data) == (True, {"of": agents[1], "name": "x"})
    assert "not connected" in read_by(hub, reader, "n9", "profile").why
    for what in ("hook", "check", "use", "stacks"):
        assert "no order of a reader" in read_by(hub, reader, "n2", what).why


def test_an_agent_that_leaves_before_its_answer_is_an_answer(
    hub: ScriptedHub, agents: tuple[int, int]
) -> None:
    reader = hub.join("reader", kind="reader")
    hub.after(0)
    hub.receive(reader, frames.Ask(9, "n2", "profile", {}))
    hub.after(0)
    hub.leave(agents[1])
    hub.after(0)
    [done] = hub.sent(reader, frames.Done)
    assert (done.ok, done.why) == (False, "the connection of its host ended before the answer")
