"""The client of agents: it comes back by itself, and what was acknowledged has arrived."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hub.dialer import join_token, polled, running
from unidle.hub import frames
from unidle.hub.client import Acknowledged, Dialling, HubClient, Lost, Welcomed
from unidle.hub.protocol import Joined, Left, Received
from waiting import wait_until

MS = 1_000_000
QUICK = Dialling(first_ns=20 * MS, longest_ns=100 * MS, within_ns=2_000 * MS)


@contextmanager
def agent(
    port: int,
    authority: str,
    token: Callable[[], str],
    keep: Callable[[str], object] | None = None,
    node: str = "n1",
) -> Iterator[HubClient]:
    client = HubClient(
        ("127.0.0.1", port), authority, lambda: frames.Hello(1, "agent", node, token=token()), keep, QUICK
    )
    try:
        yield client
    finally:
        client.close()


def events(client: HubClient, kind: type, timeout_s: float = 60) -> list[Any]:
    found: list[Any] = []

    def more() -> bool:
        found.extend(client.poll())
        return any(isinstance(event, kind) for event in found)

    wait_until(more, timeout_s, f"{kind.__name__} after {found}")
    return found


def test_an_agent_joins_keeps_its_token_before_the_first_pong_and_comes_back_with_it(tmp_path: Path) -> None:
    kept: list[str] = []
    nodes = tmp_path / "hub" / "nodes"
    seen: list[bool] = []

    def keep(token: str) -> None:
        seen.append(nodes.exists())
        kept.append(token)

    with running(tmp_path) as hub:
        port, authority, join = hub.addresses[0][1], hub.authority, join_token(tmp_path)
        hub_at = f"127.0.0.1:{port}"
        with agent(port, authority, lambda: kept[-1] if kept else join, keep) as client:
            events(client, Acknowledged)
            assert seen == [False] and json.loads(nodes.read_text()) == "n1"
            hub.close()
            assert events(client, Lost)[-1].refused is None
            assert not client.send(frames.Seen("use"))  # nothing is kept for another connection
            events(client, Lost)  # it goes on trying
            with running(tmp_path, hub_at) as again:
                events(client, Welcomed)
                peer = polled(again, Joined)[-1].peer
                again.send(peer.id, frames.Run(4, 7, "check"))
                assert events(client, frames.Run)[-1].id == 4
                assert client.send(frames.Done(4, True))
                assert polled(again, Received)[-1].frame == frames.Done(4, True)


def test_a_client_that_is_closed_with_a_reason_leaves_on_purpose(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        join = join_token(tmp_path)
        client = HubClient(
            ("127.0.0.1", hub.addresses[0][1]),
            hub.authority,
            lambda: frames.Hello(1, "agent", "n1", token=join),
        )
        events(client, Welcomed)
        assert client.send(frames.Seen("use"))
        client.close("going")
        found = polled(hub, Left)
        assert [type(event) for event in found] == [Joined, Received, Left]
        assert (found[-1].why, found[-1].on_purpose) == ("going", True)


def test_all_that_was_sent_before_an_acknowledged_pong_has_arrived(tmp_path: Path) -> None:
    with running(tmp_path, every_ns=4000 * MS) as hub:  # a busy machine must not take the peer for silent
        join = join_token(tmp_path)
        with agent(hub.addresses[0][1], hub.authority, lambda: join) as client:
            events(client, Welcomed)
            for number in range(2000):
                assert client.send(frames.Seen("signs", {"n": number, "text": "x" * 500}))
            found: list[int] = []

            def all_there() -> bool:
                found.extend(e.frame.body["n"] for e in hub.poll() if isinstance(e, Received))
                return len(found) == 2000

            wait_until(all_there)
            assert found == list(range(2000))
            events(client, Acknowledged)


def test_a_refusal_is_reported_with_its_remedy_and_the_client_tries_again(tmp_path: Path) -> None:
    with running(tmp_path) as hub, agent(hub.addresses[0][1], hub.authority, lambda: "wrong") as client:
        for _ in range(2):
            lost = events(client, Lost)[-1]
            assert lost.refused.remedy and "does not speak" in lost.why and 0 < lost.retry_ns <= 100 * MS


def test_a_hub_of_another_authority_gets_no_token(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with running(tmp_path / "a") as hub, running(tmp_path / "b") as other:
        with agent(hub.addresses[0][1], other.authority, lambda: "secret") as client:
            assert "certificate" in events(client, Lost)[-1].why
        wait_until(lambda: "tls" in hub.refusals.counts())
        assert set(hub.refusals.counts()) == {"tls"}


def test_a_port_that_accepts_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    with running(tmp_path) as hub, socket.create_server(("127.0.0.1", 0)) as dead:
        quick = Dialling(20 * MS, 100 * MS, 200 * MS)
        client = HubClient(
            dead.getsockname(), hub.authority, lambda: frames.Hello(1, "agent", "n"), None, quick
        )
        try:
            assert events(client, Lost)[-1].why == "the hub does not answer"
        finally:
            client.close()


def test_an_error_of_the_owner_s_function_is_reported_and_no_thread_is_left(tmp_path: Path) -> None:
    def hello() -> frames.Hello:
        raise KeyError("node")

    before = threading.active_count()
    with running(tmp_path) as hub:
        client = HubClient(("127.0.0.1", hub.addresses[0][1]), hub.authority, hello, None, QUICK)
        assert events(client, Lost)[-1].why == "KeyError: 'node'"
        client.close()
    assert threading.active_count() == before


def test_waits_grow_and_differ(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        authority = hub.authority
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with agent(port, authority, str) as client:
        waits = [lost.retry_ns for _ in range(4) for lost in events(client, Lost)]
    assert len(set(waits)) > 1 and all(10 * MS <= wait <= 100 * MS for wait in waits)
