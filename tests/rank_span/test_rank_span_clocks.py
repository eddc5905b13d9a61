"""What time it is at the peer, over real channels."""

from __future__ import annotations

import time

import pytest

from rank_wan.pairs import pair, threads
from unidle.span.rank import clocks
from unidle.span.rank.clocks import PeerClock
from unidle.span.wan import ChannelClosed
from waiting import wait_until

AHEAD_NS = 5_000_000_000


def test_both_sides_know_how_far_the_other_clock_is_ahead_and_follow_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clocks, "EVERY_S", 0.01)
    ahead = [AHEAD_NS]
    with pair() as (one, other):
        asks = PeerClock(one, asks=True)
        answers = PeerClock(other, asks=False, now=lambda: time.monotonic_ns() + ahead[0])
        asks.wait()
        answers.wait()
        assert asks.ahead_ns == pytest.approx(AHEAD_NS, abs=50_000_000)
        assert answers.ahead_ns == pytest.approx(-AHEAD_NS, abs=50_000_000)
        ahead[0] *= 2  # a clock that runs otherwise: the rounds before are forgotten
        wait_until(lambda: answers.ahead_ns < -1.9 * AHEAD_NS, 60, "the other clock")
        assert asks.ahead_ns == pytest.approx(2 * AHEAD_NS, abs=50_000_000)
        assert answers.ahead_ns == pytest.approx(-2 * AHEAD_NS, abs=50_000_000)
        asks.stop()
        answers.stop()
    wait_until(
        lambda: not [name for name in threads() if name.startswith("span-clock")], 60, "their threads' end"
    )


def test_the_fastest_of_the_last_rounds_counts() -> None:
    answered = [0]

    def late() -> int:
        answered[0] += 1
        time.sleep(0.2 if answered[0] != 3 else 0)  # what it says is as old as its way back is long
        return time.monotonic_ns() - (200_000_000 if answered[0] != 3 else 0)

    with pair() as (one, other):
        asks, _answers = PeerClock(one, asks=True), PeerClock(other, asks=False, now=late)
        asks.wait()
        assert abs(asks.ahead_ns) < 50_000_000
        assert answered[0] == clocks.FIRST + 1
        asks.stop()


def test_who_waits_for_a_peer_that_is_gone_is_told() -> None:
    with pair() as (one, other):
        asks = PeerClock(one, asks=True)
        other.close(1)
        with pytest.raises(ChannelClosed):
            asks.wait()
