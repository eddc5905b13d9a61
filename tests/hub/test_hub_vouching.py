"""Tokens that the hub did not make: a hello waits for the word of another authority, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hub.dialer import RawClient, box, join_token, polled, running
from unidle.hub import frames
from unidle.hub.protocol import Joined
from waiting import wait_until


class LateVoucher:
    """Knows nothing before :meth:`answer`. ``words``: by token; ``kinds``: whose tokens it may know."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds or ("box",)
        self.words: dict[str, str] = {}
        self.asked: list[str] = []
        self._wakes: list[Callable[[], None]] = []

    def knows(self, hello: frames.Hello) -> bool:
        return hello.kind in self._kinds

    def refusal(self, hello: frames.Hello, wake: Callable[[], None]) -> str | None:
        self.asked.append(hello.token)
        if hello.token not in self.words:
            self._wakes.append(wake)
            return None
        return self.words[hello.token]

    def answer(self, token: str, word: str) -> None:
        self.words[token] = word
        for wake in self._wakes:
            wake()


@pytest.mark.parametrize(("word", "frame"), [("", "welcome"), ("it is of another pod", "refused")])
def test_a_hello_waits_for_the_word_on_its_token_and_others_do_not(
    tmp_path: Path, word: str, frame: str
) -> None:
    voucher = LateVoucher()
    with running(tmp_path) as hub:
        hub.vouched_by(voucher)
        with RawClient(hub).tls() as waits:
            hello = {
                "f": "hello",
                "v": 1,
                "kind": "box",
                "node": "n9",
                "job": "j",
                "token": "a.b.c",
                "now": 1,
            }
            waits.send(hello)
            wait_until(lambda: voucher.asked == ["a.b.c"], 60)
            with box(hub):
                polled(hub, Joined)
            voucher.answer("other", "")  # wakes the hub, and is no answer to this one
            voucher.answer("a.b.c", word)
            answer = waits.next()
            assert answer["f"] == frame, answer
            if not word:
                assert polled(hub, Joined)[-1].peer.node == "n9"
            else:
                assert word in answer["why"]
                assert hub.refusals.counts() == {"token": 1}


def test_a_client_that_goes_on_before_its_token_is_known_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        hub.vouched_by(LateVoucher())
        with RawClient(hub).tls() as client:
            client.send(
                {"f": "hello", "v": 1, "kind": "box", "node": "n9", "job": "j", "token": "a", "now": 1}
            )
            wait_until(lambda: hub._loop._vouched, 60)
            client.send({"f": "pong", "n": 1, "ping": 1, "now": 1})
            answer = client.next()
            assert answer["f"] == "refused"
            assert "before the welcome" in answer["why"]


def test_a_token_that_never_becomes_known_is_late(tmp_path: Path) -> None:
    with running(tmp_path, hello_ns=300_000_000) as hub:
        hub.vouched_by(LateVoucher())
        with RawClient(hub).tls() as client:
            answer = client.hello(token="a.b.c")
            assert answer["f"] == "refused"
            assert "no word on its token in time" in answer["why"]


def test_only_boxes_are_vouched_for(tmp_path: Path) -> None:
    voucher = LateVoucher()
    with running(tmp_path) as hub:
        hub.vouched_by(voucher)
        with RawClient(hub).tls() as agent:
            assert agent.hello("agent", token="a.b.c")["f"] == "refused"
        with RawClient(hub).tls() as agent:
            assert agent.hello("agent", token=join_token(tmp_path))["f"] == "welcome"
        assert voucher.asked == []


def test_an_agent_that_others_vouch_for_is_welcome_and_gets_no_token_that_lasts(tmp_path: Path) -> None:
    voucher = LateVoucher("agent")
    voucher.words["a.b.c"] = ""
    with running(tmp_path) as hub:
        hub.vouched_by(voucher)
        with RawClient(hub).tls() as agent:
            found = agent.hello("agent", token="a.b.c")
            assert (found["f"], found.get("token", "")) == ("welcome", "")
