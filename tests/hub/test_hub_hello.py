"""Who is welcomed, as what, and who is refused: with real sockets and TLS."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hub.dialer import JOB, RawClient, box, join_token, polled, running
from unidle import wire
from unidle.clock import RealClock
from unidle.hub.limits import HubLimits
from unidle.hub.protocol import Joined, Left, Received
from unidle.hub.server import open_hub
from waiting import wait_until


def test_a_box_is_welcomed_with_the_fence_the_lease_and_a_first_ping(tmp_path: Path) -> None:
    with running(tmp_path, deadline_ns=12_000_000_000) as hub, RawClient(hub).tls() as client:
        answer = client.hello(box={"attempts": [{"attempt": 1, "ranks": {"0": {"marks": 12}}}]})
        assert answer == {
            "f": "welcome", "v": wire.VERSION, "fence": 7, "every_ns": 10**9, "deadline_ns": 12 * 10**9, "ack": 0, "token": "",
        }  # fmt: skip
        assert client.next() == {"f": "ping", "n": 1, "fence": 7, "ack": 0}
        (joined,) = polled(hub, Joined)
        peer = joined.peer
        assert (peer.kind, peer.node, peer.job, peer.address) == ("box", "n1", JOB, "127.0.0.1")
        assert peer.hello.box.attempts[0].ranks["0"].marks == 12
        assert peer.hello.token == ""  # it is not kept where it could be shown


def test_an_agent_gets_its_own_token_and_needs_it_from_its_first_pong_on(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        join = join_token(tmp_path)
        with RawClient(hub).tls() as agent:
            own = agent.hello("agent", token=join)["token"]
            assert own not in ("", join)
        with RawClient(hub).tls() as agent:  # the first one may have died before it wrote its token
            assert agent.hello("agent", token=join)["token"] == own
            agent.pong(agent.until("ping")["n"])
            wait_until(lambda: (tmp_path / "hub" / "nodes").exists())
        with RawClient(hub).tls() as other:
            answer = other.hello("agent", token=join)
            assert answer["f"] == "refused" and "joined already" in answer["why"] and answer["remedy"]
    with running(tmp_path) as hub:  # what has joined is known to the next controller, and tokens stay
        with RawClient(hub).tls() as other:
            assert other.hello("agent", token=join)["f"] == "refused"
        with RawClient(hub).tls() as agent:
            assert agent.hello("agent", token=own)["f"] == "welcome"
        assert hub.refusals.counts() == {"token": 1}


def test_a_name_is_free_again_after_its_agent_left_on_purpose(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        join = join_token(tmp_path)
        with RawClient(hub).tls() as agent:
            agent.hello("agent", token=join)
            agent.pong(agent.until("ping")["n"])
            agent.send({"f": "bye", "why": "the allocation ended"})
            left = polled(hub, Left)[-1]
            assert left.on_purpose and left.why == "the allocation ended"
        with RawClient(hub).tls() as agent:
            assert agent.hello("agent", token=join)["f"] == "welcome"


@pytest.mark.parametrize(
    ("kind", "node", "token_of", "more"),
    [
        ("box", "n1", ("box", "n2"), {}),
        ("box", "n1", ("agent", "n1"), {}),
        ("box", "n1", ("join",), {}),
        ("agent", "n1", ("agent", "n2"), {}),
        ("agent", "n1", ("box", "n1"), {}),
        ("box", "n1", ("box", "n1"), {"job": "another"}),
        ("agent", "n1", ("agent", "n1"), {"job": "another"}),
        ("agent", "", ("join",), {}),
        ("agent", "n\x1b[2J", ("join",), {}),
        ("agent", "n1", ("literal", ""), {}),
        ("agent", "n1", ("literal", "\u00e9\u20ac"), {}),
    ],
)
def test_a_token_speaks_for_nothing_but_its_own(
    kind: str, node: str, token_of: tuple[str, ...], more: dict[str, Any], tmp_path: Path
) -> None:
    with running(tmp_path) as hub, RawClient(hub).tls() as client:
        tokens = hub._tokens
        which, *names = token_of
        token = {"box": lambda: tokens.box(names[0], JOB), "agent": lambda: tokens.agent(names[0]),
                 "join": lambda: tokens.join, "literal": lambda: names[0]}[which]()  # fmt: skip
        answer = client.hello(kind, node, token, **more)
        assert answer["f"] == "refused" and answer["remedy"]
        assert client.ended()
        assert hub.refusals.counts() == {"token": 1}
        (refusal,) = hub.refusals.last()
        assert refusal.why.isprintable() and not (token and token in repr(refusal))
        assert hub.poll() == []


def test_names_with_the_separator_have_no_token_in_common(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        pairs = [("a|b", "c"), ("a", "b|c"), ("a\\|b", "c"), ("a\\", "b|c")]
        assert len({hub.box_token(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(("version", "welcomed"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_versions_one_apart_talk_to_each_other(version: int, welcomed: bool, tmp_path: Path) -> None:
    with running(tmp_path) as hub, RawClient(hub).tls() as client:
        answer = client.hello(v=wire.VERSION + version, later={"unknown": [1]})
        assert answer["f"] == ("welcome" if welcomed else "refused")
        if not welcomed:
            assert "version" in answer["why"] and hub.refusals.counts() == {"version": 1}


def test_unknown_frames_of_a_newer_peer_are_ignored_and_of_an_equal_one_refused(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        with RawClient(hub).tls() as newer:
            newer.hello(v=wire.VERSION + 1)
            newer.send({"f": "weather", "rain": 1}, {"f": "done", "id": 3, "ok": True, "more": 1})
            assert polled(hub, Joined)
            assert newer.until("ping")
        with RawClient(hub).tls() as equal:
            equal.hello(node="n2")
            equal.send({"f": "weather"})
            assert equal.until("refused")


@pytest.mark.parametrize(
    "frame",
    [
        {"f": "fetch", "id": 1, "node": "n1", "job": JOB, "attempt": 1, "rank": 0, "file": "log"},
        {"f": "ask", "id": 1, "node": "n1", "what": "profile", "body": {}},
    ],
)
def test_who_is_no_reader_cannot_read_from_other_hosts_or_order_anything_there(
    frame: dict[str, Any], tmp_path: Path
) -> None:
    with running(tmp_path) as hub, RawClient(hub).tls() as client:
        client.hello()
        client.send(frame)
        answer = client.until("refused")
        assert "only a reader" in answer["why"]
        assert not any(isinstance(event, Received) for event in hub.poll())


def test_a_newer_connection_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    with running(tmp_path) as hub, box(hub) as older:
        first = polled(hub, Joined)[0].peer.id
        with box(hub):
            left, joined = polled(hub, Joined)
            assert (left.peer, left.on_purpose) == (first, False) and joined.peer.id > first
            assert older.until("refused")["why"] == "a newer connection took its place"
            assert older.ended()
            with box(hub, "n2"):
                (other,) = polled(hub, Joined)
                assert other.peer.node == "n2"


def test_a_controller_that_cannot_renew_its_lease_acknowledges_no_pong_and_welcomes_no_client(
    tmp_path: Path,
) -> None:
    fresh = [True]
    limits = HubLimits(every_ns=1_000_000)
    hub = open_hub("127.0.0.1:0", str(tmp_path), RealClock(), 7, limits=limits, is_fresh=lambda: fresh[0])
    with closing(hub), RawClient(hub).tls() as box:
        assert box.hello()["f"] == "welcome"
        [peer] = [event.peer.id for event in polled(hub, Joined) if isinstance(event, Joined)]
        box.pong(1)
        while box.next()["ack"] < 1:
            pass
        fresh[0] = False

        def refused() -> None:
            with RawClient(hub).tls() as other:
                answer = other.hello(node="n2")
            assert answer["f"] == "refused"
            assert "could not renew its lease" in answer["why"]

        refused()  # the hub's thread has seen it
        before_ns = hub.acknowledged_ns(peer)
        box.pong(2)
        for _ in range(3):
            refused()
        assert hub.acknowledged_ns(peer) == before_ns
        fresh[0] = True
        while box.next()["ack"] < 2:
            pass
        assert hub.acknowledged_ns(peer) > before_ns
