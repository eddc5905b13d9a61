"""Real holders without PyTorch: copies pass to the peer, shards join to a checkpoint, and nobody else's job is disturbed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.checkpoint.find import find_newest_good
from unidle.checkpoint.holder import memory_copies, wire
from unidle.checkpoint.holder.memory_copies import PAGE, Label
from unidle.checkpoint.holder.saves import Saves
from unidle.checkpoint.holder.wire import Address, Gone
from unidle.checkpoint.layout import INNER, Shard, encode_header, partial_name
from waiting import wait_until

OPTIONS = {"keep": 2, "keep_every": 0, "restore_test": "read"}


class Rank:
    """Speaks for a rank, as the library does."""

    def __init__(
        self, storage: Path, hold: Path, rank: int, session: str = "aa", world: int = 2, attempt: int = 0
    ) -> None:
        self.storage, self.hold, self.rank, self.session, self.world = storage, hold, rank, session, world
        self.attempt = {"run": "job", "number": attempt} if attempt else None
        self.address = wire.start(str(storage), str(hold), hold.name, 30)
        self.link: socket.socket | None = None

    def hello(self, peer: Address | None = None, lead: Address | None = None) -> str:
        """Empty, or why it was refused."""
        self.link = wire.connect(self.address)
        self.link.settimeout(30)
        answer, _ = wire.ask(self.link, {
            "do": "hello", "rank": self.rank, "session": self.session, "pid": os.getpid(), "options": OPTIONS, "attempt": self.attempt,
            "peer": peer.to_json() if peer else None, "lead": lead.to_json() if lead else None,
        })  # fmt: skip
        return str(answer.get("why", ""))

    def copy(self, step: int, store: bool = False, through: int | None = None) -> bytes:
        """Put a copy into memory and tell the holder; returns the shard."""
        assert self.link is not None
        head, places = encode_header(
            {f"w@{self.rank * 4}": ("F32", (4,), "w", (self.rank * 4,), (self.world * 4,))}, 3
        )
        shard = head + bytes([step % 256]) * (places["@own"][1] - len(head))
        label = Label(self.session, step, self.rank, self.world, len(shard), 0)
        name = memory_copies.own_name(self.rank, self.session, step % 3)
        (self.hold / name).write_bytes(memory_copies.page_of(label) + shard)
        wire.send(self.link, {
            "do": "copied", "slot": step % 3, "name": name, "label": asdict(label), "store": store, "through": through,
        })  # fmt: skip
        return shard

    def hears(self, event: str) -> dict[str, Any]:
        assert self.link is not None
        while True:
            news, _ = wire.receive(self.link)
            if news["event"] == event:
                return news

    def copies(self) -> list[tuple[int, int]]:
        """Rank and step of what the holder has."""
        with wire.connect(self.address) as link:
            answer, _ = wire.ask(link, {"do": "inventory"})
        return sorted((label["rank"], label["step"]) for label in answer["copies"].values())


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    made: list[Rank] = []

    def make(rank: int, node: str = "", **more: Any) -> Rank:
        made.append(Rank(tmp_path / "ckpt", tmp_path / (node or f"n{rank}"), rank, **more))
        return made[-1]

    (tmp_path / "ckpt").mkdir()
    yield make
    for rank in made:
        if rank.link is not None:
            rank.link.close()
        try:
            with wire.connect(rank.address) as link:
                wire.ask(link, {"do": "end"})
        except Gone:
            continue
    wait_until(
        lambda: not any((rank.hold / wire.ADDRESS).exists() for rank in made), 60, "the end of the holders"
    )


def test_a_copy_reaches_the_peer_byte_for_byte(ranks: Callable[..., Rank]) -> None:
    a, b = ranks(0), ranks(1)
    assert a.hello(peer=b.address) == ""
    shard = a.copy(7)
    assert a.hears("sent") == {"event": "sent", "slot": 1, "why": ""}
    assert (0, 7) in b.copies()
    with wire.connect(b.address) as link:
        told, size = wire.ask(link, {"do": "read", "name": memory_copies.peer_name(0, "aa", 7), "chunk": 0})
        data = bytearray(size)
        wire.receive_into(link, memoryview(data))
    assert bytes(data) == shard
    assert told["crc"] > 0


def test_all_who_begin_at_once_have_the_same_name_for_a_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for n in range(100):
            storage = str(tmp_path / f"{n}")
            (name,) = set(pool.map(wire.directory_id, [storage] * 8))
            assert len(name) == 16
            assert [path.name for path in Path(storage, INNER).iterdir()] == ["id"]


def test_a_peer_keeps_what_every_rank_has_and_lets_go_of_older_ones(ranks: Callable[..., Rank]) -> None:
    a, b = ranks(0), ranks(1)
    a.hello(peer=b.address)
    for step in range(1, 7):
        a.copy(step, through=step - 1 or None)
        a.hears("sent")
    wait_until(lambda: len(b.copies()) <= 2, 60, "the older copies to go")
    assert b.copies() == [(0, 5), (0, 6)]


def test_a_peer_that_is_gone_is_told_and_holds_nothing_up(ranks: Callable[..., Rank]) -> None:
    a = ranks(0)
    a.hello(peer=Address("127.0.0.1", 9, "x", "nobody"))
    for step in (1, 2):
        a.copy(step)
        assert "does not accept the copy" in a.hears("sent")["why"]


def test_shards_of_two_nodes_become_one_good_checkpoint(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    a, b = ranks(0), ranks(1)
    a.hello()
    b.hello(lead=a.address)
    a.copy(5, store=True)
    assert not list((tmp_path / "ckpt").glob("step_*"))  # half of it is no checkpoint
    b.copy(5, store=True)
    path = a.hears("stored")["path"]
    assert a.hears("good")["path"] == path
    found, passed = find_newest_good(str(tmp_path / "ckpt"))
    assert found is not None
    assert (found.path, found.shards, passed) == (path, 2, [])


def test_a_shard_that_cannot_be_written_drops_the_whole_checkpoint(
    ranks: Callable[..., Rank], tmp_path: Path
) -> None:
    a, b = ranks(0), ranks(1)
    a.hello()
    b.hello(lead=a.address)
    (tmp_path / "ckpt" / ".step_0000000005.aa").write_text("a file is in the way")
    a.copy(5, store=True)
    told = a.hears("failed")
    assert told["step"] == 5
    assert told["why"]
    (tmp_path / "ckpt" / ".step_0000000005.aa").unlink(missing_ok=True)
    a.copy(6, store=True)
    b.copy(6, store=True)
    assert a.hears("stored")["step"] == 6


@pytest.mark.slow
def test_the_ranks_of_another_job_are_refused_while_one_lives(ranks: Callable[..., Rank]) -> None:
    a, other = ranks(0), ranks(0, session="bb")
    assert a.hello() == ""
    assert "another job" in other.hello()
    assert a.link is not None
    a.link.close()
    again = ranks(0, session="cc")
    assert again.hello() == ""


@pytest.mark.slow
def test_another_node_cannot_take_a_directory_that_is_in_use(ranks: Callable[..., Rank]) -> None:
    assert ranks(0).hello() == ""
    assert "rank 0 of another job" in ranks(0, node="elsewhere", session="bb").hello()


def test_the_next_holder_takes_over_what_a_killed_one_held(ranks: Callable[..., Rank]) -> None:
    import json
    import signal

    a = ranks(0)
    a.hello()
    a.copy(3)
    os.kill(json.loads((a.hold / wire.ADDRESS).read_text())["pid"], signal.SIGKILL)
    again = ranks(0)
    assert again.address != a.address
    assert again.copies() == [(0, 3)]


def test_a_holder_that_bids_farewell_stays_for_the_rank_that_comes(ranks: Callable[..., Rank]) -> None:
    a = ranks(0)
    a.hello()
    assert a.link is not None
    wire.send(a.link, {"do": "bye"})
    a.link.close()
    time.sleep(1.5)
    b = ranks(0, session="bb")
    time.sleep(1.5)  # the farewell would be over
    assert b.hello() == ""
    assert b.address == a.address


@pytest.mark.slow
def test_whenever_a_rank_comes_while_a_holder_ends_it_finds_one(ranks: Callable[..., Rank]) -> None:
    for k in range(16):
        rank = ranks(0, session=f"{k:02x}")
        assert rank.hello() == ""
        assert rank.link is not None
        rank.link.close()
        rank.link = None
        with contextlib.suppress(Gone), wire.connect(rank.address) as link:
            wire.ask(link, {"do": "end"})
        time.sleep(k * 0.04)


def test_a_copy_that_was_cut_short_is_not_offered(ranks: Callable[..., Rank]) -> None:
    a = ranks(0)
    a.hello()
    a.copy(3)
    file = a.hold / memory_copies.own_name(0, "aa", 0)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert a.copies() == []
    file.write_bytes(memory_copies.page_of(None) + whole[PAGE:])  # what a rank killed while copying leaves
    assert a.copies() == []


def test_a_wrong_token_opens_nothing(ranks: Callable[..., Rank]) -> None:
    a = ranks(0)
    with pytest.raises(Gone):
        wire.connect(Address("127.0.0.1", a.address.port, "wrong", a.address.name))


def test_a_directory_made_anew_has_other_copies(tmp_path: Path) -> None:
    storage = tmp_path / "ckpt"
    first = wire.hold_directory(str(storage), "n0", wire.directory_id(str(storage)))
    assert first == wire.hold_directory(str(storage), "n0", wire.directory_id(str(storage)))
    shutil.rmtree(storage)
    assert first != wire.hold_directory(str(storage), "n0", wire.directory_id(str(storage)))


@given(nodes=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12))
def test_a_peer_is_always_on_another_node(nodes: list[str]) -> None:
    from unidle.rank.checkpoint.collectives import peer_of

    for rank in range(len(nodes)):
        peer = peer_of(rank, nodes)
        assert (peer is None) == (len(set(nodes)) == 1)
        assert peer is None or nodes[peer] != nodes[rank]


held = st.lists(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 99), st.integers(0, 1))),
    min_size=1,
    max_size=5,
)


@given(held=held)
def test_each_piece_is_written_once_by_one_that_has_it_or_by_each_for_itself(
    held: list[dict[str, tuple[int, int]]],
) -> None:
    from unidle.rank.checkpoint.collectives import writers

    found = writers(held)
    assert found.keys() == {key for pieces in held for key in pieces}
    for key, writer in found.items():
        values = {pieces[key] for pieces in held if key in pieces}
        assert (writer is None) == (len(values) > 1)
        assert writer is None or key in held[writer]


def test_shards_that_come_after_their_save_was_dropped_leave_nothing(tmp_path: Path) -> None:
    told: list[dict[str, object]] = []
    saves = Saves(str(tmp_path), str(tmp_path / "hold"), told.append, lambda: "")
    place = tmp_path / partial_name(5, "session")
    saves.failed("session", 5, 0, "disk full")
    place.mkdir()  # another writer was under way
    saves.failed("session", 5, 1, "disk full")
    assert not place.exists()
    place.mkdir()
    saves.arrived("session", 5, 3, Shard("shard", 2, 1, (0,)))
    assert not place.exists()
    assert [one["event"] for one in told] == ["failed"]
