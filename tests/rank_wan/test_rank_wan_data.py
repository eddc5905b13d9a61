"""What is sent is what arrives: sizes, tags, orders, slots, bounds. Real sockets on the loopback."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_wan.pairs import QUICK, SECRET, pair, sockets, threads
from unidle.span.wan import Channel, ChannelClosed, ChannelLost, Endpoint, Settings, WanError, WrongSize
from waiting import wait_until


@given(
    plan=st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from((0, 1, 7, 1023, 1024, 5000, 65536, 300_001)), st.booleans()
        ),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15)
def test_messages_arrive_whole_and_in_the_order_of_their_tag(
    plan: list[tuple[int, int, bool]], seed: int
) -> None:
    dice = random.Random(seed)
    with pair(replace(QUICK, chunk_bytes=4096, early_bytes=32_768)) as (one, other):
        sent, got = [], []
        for tag, size, there in plan:
            data = dice.randbytes(size)
            sender, receiver = (one, other) if there else (other, one)
            if dice.random() < 0.5:
                sent.append((sender.send(tag, data), data))
                got.append((receiver.recv(tag, bytearray(size)), data))
            else:
                got.append((receiver.recv(tag), data))
                sent.append((sender.send(tag, data), data))
        for future, data in got:
            assert bytes(future.result(60)) == data
        for done, data in sent:
            assert done.result(60) == len(data)


def test_a_posted_buffer_is_filled_in_place_and_returned() -> None:
    with pair() as (one, other):
        data, into = os.urandom(1_000_000), bytearray(1_000_000)
        got = other.recv("gradient", into)
        one.send("gradient", memoryview(data)).result(60)
        assert got.result(60).obj is into
        assert into == data


def test_every_flow_carries_a_part_of_a_large_message() -> None:
    small = replace(QUICK, flow_buffer_bytes=64 << 10, unsent_bytes=64 << 10)
    with pair(small) as (one, other):
        got = other.recv(1, bytearray(64 << 20))
        one.send(1, bytes(64 << 20))
        got.result(60)
        assert len(one.tcp_infos()) == 4
        assert all(info.segments > 10 for info in one.tcp_infos())


def test_a_message_of_another_length_fails_its_buffer_alone() -> None:
    with pair() as (one, other):
        wrong, right = other.recv(1, bytearray(10)), other.recv(1, bytearray(11))
        one.send(1, b"elevenbytes")
        one.send(1, b"ELEVENBYTES").result(60)
        with pytest.raises(WrongSize, match="11 bytes came for a buffer of 10"):
            wrong.result(60)
        assert bytes(right.result(60)) == b"ELEVENBYTES"


def test_a_buffer_that_may_not_be_written_is_refused() -> None:
    with pair() as (_, other), pytest.raises(ValueError, match="into: is read-only"):
        other.recv(1, b"1234")


def test_a_slow_reader_bounds_what_is_sent() -> None:
    bounded = replace(QUICK, early_bytes=256 << 10, window_bytes=512 << 10)
    with pair(bounded) as (one, other):
        data = os.urandom(8 << 20)
        sent = [one.send(1, data) for _ in range(4)]
        quick = other.recv(3, bytearray(5))
        one.send(3, b"quick").result(60)  # another tag is not held up by those that wait
        quick.result(60)
        assert not any(future.done() for future in sent)
        assert other.stats().early_peak_bytes <= 256 << 10
        got = [other.recv(1, bytearray(8 << 20)) for _ in range(4)]
        assert all(future.result(60) == data for future in got)
        assert one.stats().in_flight_peak_bytes <= 512 << 10
        assert other.stats().early_bytes == 0
        assert one.stats().blocked_credit_ns > 0


def test_no_byte_leaves_before_its_slot_and_slots_order_messages() -> None:
    order = [1, 2, 0]
    for apart_ns in (100_000_000, 400_000_000, 1_600_000_000):
        arrived, in_time = _sent_in_slots(order, apart_ns)
        if in_time:
            assert arrived == order
            return
    pytest.fail("this thread never ran soon enough to send before the first slot")


def _sent_in_slots(order: list[int], apart_ns: int) -> tuple[list[int], bool]:
    """The order in which messages with slots in ``order`` arrive, and whether all were sent before the first slot."""
    arrived: list[tuple[int, int]] = []

    def note(tag: int) -> Callable[[object], None]:
        return lambda _: arrived.append((time.monotonic_ns(), tag))

    with pair(replace(QUICK, flows=1)) as (one, other):  # one flow: what was sent first arrives first
        got = [other.recv(tag, bytearray(1000)) for tag in range(3)]
        for tag, future in enumerate(got):
            future.add_done_callback(note(tag))
        now = time.monotonic_ns()
        slots = [now + (order.index(tag) + 1) * apart_ns for tag in range(3)]
        sent = [one.send(tag, bytes(1000), not_before_ns=slot) for tag, slot in enumerate(slots)]
        in_time = time.monotonic_ns() < min(slots)
        for future in (*sent, *got):
            future.result(60)
        wait_until(lambda: len(arrived) == 3, 60, "the callbacks, which come after the results")
        assert all(at >= slots[tag] for at, tag in arrived)
        assert not in_time or one.stats().blocked_pacing_ns > 0
    return [tag for _, tag in arrived], in_time


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_rate_is_never_exceeded(in_kernel: bool) -> None:
    rate, size = 20_000_000, 8_000_000
    paced = replace(QUICK, rate_bytes_per_s=rate, kernel_pacing=in_kernel, burst_bytes=256 << 10)
    with pair(paced) as (one, other):
        got = other.recv(1, bytearray(size))
        begun = time.monotonic()
        one.send(1, bytes(size))
        got.result(60)
        # what the kernel lets go at once per flow, and the bucket's burst, is not paced
        assert time.monotonic() - begun >= 0.6 * size / rate


def test_what_was_sent_arrives_before_a_close_and_what_is_asked_after_it_fails() -> None:
    with pair() as (one, other):
        got = other.recv(1, bytearray(3_000_000))
        open_end = other.recv(2)
        one.send(1, bytes(3_000_000))
        one.close()
        assert len(got.result(60)) == 3_000_000
        with pytest.raises(ChannelClosed, match="by the peer"):
            open_end.result(60)
        with pytest.raises(ChannelClosed):
            one.send(1, b"late").result(60)


def test_no_thread_and_no_socket_is_left_after_a_close() -> None:
    before = threads(), sockets()
    with pair() as (one, other):
        got = other.recv(1)
        one.send(1, bytes(1 << 20))
        got.result(60)
    lonely = Endpoint("c", run="r", secret=SECRET, settings=QUICK)
    lonely.connect("nobody", ("127.0.0.1", 9))
    lonely.close(0.1)
    wait_until(lambda: (threads(), sockets()) == before, 60, "the end of threads and sockets")
    with pytest.raises(ChannelClosed):
        lonely.accept("d")


def test_a_peer_that_never_comes_is_named() -> None:
    gone = socket.create_server(("127.0.0.1", 0))
    address = gone.getsockname()
    gone.close()
    with Endpoint("a", run="r", secret=SECRET, settings=replace(QUICK, give_up_s=0.3)) as a:
        channel = a.connect("b", address)
        waiting = channel.send(1, bytes(1234))
        with pytest.raises(
            ChannelLost, match=rf"b at 127.0.0.1:{address[1]} was cut for 0.* 1,234 bytes outstanding"
        ):
            waiting.result(60)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flows", 0),
        ("flows", 1000),
        ("chunk_bytes", 5),
        ("window_bytes", -1),
        ("give_up_s", 0.0),
        ("dead_s", 0.1),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: .*got"):
        Settings(**{field: value})  # type: ignore[arg-type]


def test_both_sides_may_send_at_once() -> None:
    def both(one: Channel, other: Channel) -> None:
        data = os.urandom(5_000_000)
        got = [one.recv(1, bytearray(len(data))), other.recv(1, bytearray(len(data)))]
        one.send(1, data)
        other.send(1, data)
        assert all(future.result(60) == data for future in got)

    with pair() as (one, other):
        both(one, other)
        both(other, one)


def test_lanes_to_one_peer_are_channels_with_settings_of_their_own() -> None:
    with contextlib.ExitStack() as stack:
        b = Endpoint(
            "b", run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=QUICK,
            settings_of={"a#cell": replace(QUICK, rate_bytes_per_s=5_000_000)},
        )  # fmt: skip
        stack.callback(b.close, 1)
        assert b.address is not None
        a = Endpoint("a", run="r", secret=SECRET, settings=QUICK)
        stack.callback(a.close, 1)
        one, other = a.connect("b", b.address), a.connect("b", b.address, lane="cell", flows=2)
        plain, laned = b.accept("a"), b.accept("a", "cell")
        got = laned.recv(1, bytearray(4)), plain.recv(1, bytearray(4))
        one.send(1, b"self")
        other.send(1, b"cell")
        assert [bytes(each.result(60)) for each in got] == [b"cell", b"self"]
        assert laned.settings.rate_bytes_per_s == 5_000_000
        assert plain.settings.rate_bytes_per_s == 0
        assert other.settings.flows == 2
        with pytest.raises(WanError, match="b#cell"):
            a.connect("b", b.address, lane="cell")
