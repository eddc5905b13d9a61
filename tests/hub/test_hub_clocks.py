"""Offsets of clocks: right within their error, whatever the network does, and right again after a clock has stepped."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hub.dialer import box, polled, running
from unidle.clock import RealClock, boottime_ns
from unidle.hub.clocks import KEPT, OffsetEstimate
from unidle.hub.protocol import Joined
from waiting import wait_until

MS = 1_000_000
EXCHANGES = st.lists(
    st.tuples(st.integers(0, 2000 * MS), st.integers(0, 2000 * MS)), min_size=1, max_size=200
)


@given(EXCHANGES, st.integers(-(10**18), 10**18))
def test_the_truth_is_within_the_error_and_the_least_round_trip_of_the_last_64_counts(
    delays: list[tuple[int, int]], truth: int
) -> None:
    estimate = OffsetEstimate()
    now = 10**18
    for there, back in delays:
        estimate.add(now, now + there + back, now + there - truth)
        now += 10**9
    value = estimate.value
    assert value is not None
    assert abs(value.offset_ns - truth) <= value.error_ns
    assert value.error_ns == -(-min(there + back for there, back in delays[-KEPT:]) // 2)
    assert estimate.jumps == 0


@given(EXCHANGES, st.integers(3 * 10**9, 10**15), st.sampled_from([1, -1]))
def test_a_clock_that_steps_is_followed_by_the_next_exchange(
    delays: list[tuple[int, int]], step: int, sign: int
) -> None:
    estimate = OffsetEstimate()
    now = 10**18
    for there, back in delays:
        estimate.add(now, now + there + back, now + there)
        now += 10**9
    estimate.add(now, now + 100, now + 50 + sign * step)
    assert estimate.value is not None
    assert abs(estimate.value.offset_ns + sign * step) <= estimate.value.error_ns == 50
    assert estimate.jumps == 1


def test_the_offset_of_a_host_whose_clock_is_ten_minutes_off_and_then_steps(tmp_path: Path) -> None:
    off = 600 * 10**9
    with running(tmp_path, every_ns=50 * MS) as hub, box(hub) as client:
        (joined,) = polled(hub, Joined)
        peer = joined.peer.id
        truth = RealClock().now_ns() - boottime_ns()
        for ahead in (off, -off):
            for _ in range(3):
                ping = client.until("ping")["n"]
                client.pong(ping, now=max(0, boottime_ns() + off + ahead))

            def near(wanted: int = truth - off - ahead) -> bool:
                offset = hub.offset(peer)
                return offset is not None and abs(offset.offset_ns - wanted) <= offset.error_ns + MS

            wait_until(near)
        assert hub.offset(peer + 1) is None and hub.acknowledged_ns(peer + 1) == 0


def test_only_an_acknowledged_pong_renews_a_lease_and_a_repeated_or_older_one_does_not(
    tmp_path: Path,
) -> None:
    with running(tmp_path, every_ns=100 * MS) as hub, box(hub) as client:
        peer = polled(hub, Joined)[0].peer.id
        first_ns = hub.acknowledged_ns(peer)
        ping = client.until("ping")
        client.send({"f": "pong", "n": 5, "ping": ping["n"], "now": boottime_ns()})
        wait_until(lambda: client.next()["ack"] == 5)
        second_ns = hub.acknowledged_ns(peer)
        assert second_ns > first_ns
        for n in (5, 4, 1):
            client.send({"f": "pong", "n": n, "ping": ping["n"], "now": boottime_ns()})
            assert [client.next()["ack"] for _ in range(2)] == [5, 5]
            assert hub.acknowledged_ns(peer) == second_ns
