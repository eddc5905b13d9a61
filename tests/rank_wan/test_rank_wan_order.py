"""What a channel keeps is what is on its way: whatever went before is forgotten, and known again when it comes twice."""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_wan.pairs import QUICK, pair
from rank_wan.relay import Relay
from rank_wan.test_rank_wan_net import cells
from unidle.span.wan import Settings
from unidle.span.wan.api import Stats
from unidle.span.wan.frames import DATA, HEADER_BYTES, WanFrame, pack, unpack
from unidle.span.wan.inbound import Inbound
from unidle.span.wan.order import Ranges
from unidle.span.wan.outbound import Chunk, Outbound
from unidle.span.wan.sums import Summer


@given(numbers=st.permutations(range(1, 60)), twice=st.lists(st.integers(1, 59)))
def test_ranges_are_a_set_that_ends_as_one_range(numbers: list[int], twice: list[int]) -> None:
    ranges, there = Ranges(), set()
    for number in numbers:
        assert ranges.add(number) == (number not in there)
        there.add(number)
        for other in twice:
            assert (other in ranges) == (other in there)
            assert other not in there or not ranges.add(other)
        missing = [n for n in range(1, 61) if n not in there]
        assert ranges.below == missing[0]
        assert ranges.gaps == sum(n - 1 in there and n > missing[0] for n in missing)
    assert (ranges.below, ranges.gaps) == (60, 0)


class _Link:
    """Both halves of one direction, and a network between them that reorders, loses and doubles what it carries."""

    def __init__(self, seed: int, early_bytes: int) -> None:
        self.dice = random.Random(seed)
        bounds = Settings(chunk_bytes=1024, window_bytes=16 << 10, early_bytes=early_bytes)
        self.stats = Stats(), Stats()
        self.out, self.into = Outbound(1, bounds, self.stats[0], Summer("")), Inbound(bounds, self.stats[1])
        self.out.peer_early_bytes = early_bytes
        self.chunks: list[tuple[Chunk, bytes]] = []  # on their way
        self.old: list[tuple[WanFrame, bytes]] = []  # came, and may come again on a dead connection
        self.grants: list[tuple[int, int]] = []
        self.sent: dict[int, list[tuple[Future[int], bytes]]] = defaultdict(list)
        self.got: dict[int, list[Future[memoryview]]] = defaultdict(list)

    def send(self, tag: int, size: int) -> None:
        data, future = self.dice.randbytes(size), Future[int]()
        self.sent[tag].append((future, data))
        self.out.add(tag, memoryview(data), future, 0)

    def post(self, tag: int) -> None:
        future: Future[memoryview] = Future()
        self.got[tag].append(future)
        self.grants.append((self.into.post(tag, None, future), tag))

    def move(self) -> None:
        """One thing happens: a chunk leaves, arrives, is lost or comes again; a grant arrives or is lost."""
        what = self.dice.randrange(8)
        if what < 3 and (chunk := self.out.next_chunk(0)) is not None:
            self.chunks.append((chunk, bytes(chunk.header) + bytes(chunk.payload)))
        elif what < 6 and self.chunks:
            chunk, data = self.chunks.pop(self.dice.randrange(len(self.chunks)))
            lost = what == 5
            if not lost or self.dice.random() < 0.5:  # it came, and its acknowledgement did not
                self.arrive(unpack(1, data[:HEADER_BYTES], 1 << 20), data[HEADER_BYTES:])
            self.out.again([chunk]) if lost else self.out.settled(chunk)
        elif what == 6 and self.grants:
            number, tag = self.grants.pop(self.dice.randrange(len(self.grants)))
            if self.dice.random() < 0.7:
                self.out.granted(number, tag)
        elif what == 7 and self.old:
            self.arrive(*self.dice.choice(self.old), again=True)

    def arrive(self, frame: WanFrame, payload: bytes, again: bool = False) -> None:
        self.into.saw(frame.seen)
        landing = self.into.begin(frame)
        landing.view[:] = payload
        self.into.end(landing, sound=True)
        if not again:
            self.old = [*self.old[-20:], (frame, payload)]

    def settle(self) -> None:
        """Until all is there: flows that are opened again tell all grants again."""
        while not all(f.done() for tag in self.sent for f, _ in self.sent[tag][: len(self.got[tag])]):
            for _ in range(30):
                self.move()
            self.grants = self.into.grants()
        for number, tag in self.into.grants():
            self.out.granted(number, tag)
        self.into.saw(self.out.seen)


@given(
    plan=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3000), st.booleans()), max_size=40),
    seed=st.integers(0, 1 << 30),
    early=st.sampled_from((0, 2048, 1 << 20)),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_lost_doubled_or_overtaken_each_message_is_in_its_buffer_and_nothing_is_kept(
    plan: list[tuple[int, int, bool]], seed: int, early: int
) -> None:
    link = _Link(seed, early)
    for tag, size, first in plan:
        link.send(tag, size) if first else link.post(tag)
        link.post(tag) if first else link.send(tag, size)
        for _ in range(link.dice.randrange(30)):
            link.move()
    link.settle()
    for tag, got in link.got.items():
        assert [bytes(f.result(0)) for f in got] == [data for _, data in link.sent[tag]]
    assert (link.out.kept, link.into.kept, link.stats[1].early_bytes) == (0, 0, 0)
    received = link.stats[1].received_chunks
    for frame, payload in link.old:  # what a dead connection still had
        link.arrive(frame, payload, again=True)
    assert (link.into.kept, link.stats[1].received_chunks) == (0, received)


def test_a_tag_that_nobody_asks_for_does_not_keep_the_others() -> None:
    link = _Link(3, 4096)
    link.send(99, 10)
    for tag in range(500):
        link.send(tag % 7 + 100 * tag, 20)
        link.post(tag % 7 + 100 * tag)
        link.settle()
        assert link.out.kept + link.into.kept < 12
    link.post(99)
    link.settle()
    assert bytes(link.got[99][0].result(0)) == link.sent[99][0][1]
    assert link.out.kept + link.into.kept == 0


def test_a_header_tells_what_was_packed() -> None:
    frame = WanFrame(DATA, 7, 1 << 40, 12, 1 << 33, 5, 30, 20, 77)
    assert unpack(1, pack(1, frame), 1 << 20) == frame


def test_many_thousands_of_buffers_over_cut_connections_leave_nothing_behind(wait_until) -> None:
    relays: list[Relay] = []

    def via(to: tuple[str, int]) -> Relay:
        relays.append(Relay(to))
        return relays[0]

    steps, each = 300, 40
    with pair(replace(QUICK, backoff_s=0.001), via=via) as (one, other):
        most = 0
        for step in range(steps):
            told = [(f"{step}.{k}", (step * each + k).to_bytes(8, "big") * (k + 1)) for k in range(each)]
            sent = [one.send(tag, data) for tag, data in told]
            got = [other.recv(tag, bytearray(len(data))) for tag, data in told]
            back = one.recv("again")  # a tag that is used for ever
            other.send("again", step.to_bytes(8, "big"))
            if step % 25 == 0:
                relays[0].cut()
            assert [bytes(f.result(60)) for f in got] == [data for _, data in told]
            assert int.from_bytes(back.result(60), "big") == step
            for done in sent:
                done.result(60)
            most = max(most, one.kept, other.kept)
        assert one.stats().reconnects >= steps // 25
        assert most <= 6 * each  # of one step and what its acknowledgements lag behind, not of all
        wait_until(lambda: one.kept + other.kept == 0)


@pytest.mark.slow
def test_a_cell_keeps_what_is_on_its_way_and_no_more() -> None:
    with cells(2) as (near, far):
        for step in range(200):  # 1,600 messages, each with a tag of its own
            sizes = [k * 70_001 % 200_000 for k in range(8)]
            got = [far[k % 2].recv(f"{step}.{k}", bytearray(s), origin=0) for k, s in enumerate(sizes)]
            for k, size in enumerate(sizes):
                near[0].send(f"{step}.{k}", bytes([step]) * size, to=k % 2)
            assert all(set(f.result(60)) <= {step} for f in got)
            assert max(cell.kept for cell in (*near, *far)) <= 10 * 64  # told in 64s, to two targets
