"""What is no frame as agreed ends its own connection, and nothing else."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.dialer import RawClient, box, polled, running
from unidle import wire
from unidle.clock import boottime_ns
from unidle.hub import frames
from unidle.hub.protocol import Joined, Left, Received

MARK = {"k": "step", "t": 5, "n": 1}
GOOD: list[dict[str, Any]] = [
    {"f": "pong", "n": 1, "ping": 1, "now": 5},
    {"f": "marks", "attempt": 1, "rank": 0, "first": 0, "marks": [MARK, MARK]},
    {"f": "done", "id": 7, "ok": True, "why": "", "data": {"port": 1}},
    {"f": "seen", "what": "use", "body": {"a": [1.5, None]}},
    {"f": "bye", "why": "over"},
]


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


MALFORMED = {
    "no length": struct.pack(">I", 0),
    "above the limit": struct.pack(">I", wire.FRAME_BYTES + 1),
    "random": bytes(range(255, -1, -1)) * 4,
    "no JSON": framed(b"{"),
    "no UTF-8": framed(b'{"f":"bye","why":"\xff"}'),
    "a list": framed(b"[]"),
    "no name": framed(b'{"why":"x"}'),
    "an unknown name": framed(b'{"f":"weather"}'),
    "a frame of the hub": framed(b'{"f":"ping","n":1,"fence":1}'),
    "a second hello": framed(json.dumps({"f": "hello", "v": 1, "kind": "box", "node": "n1"}).encode()),
    "a wrong type": framed(b'{"f":"pong","n":"1","ping":1,"now":5}'),
    "a negative number": framed(b'{"f":"pong","n":-1,"ping":1,"now":5}'),
    "a huge number": framed(b'{"f":"pong","n":1,"ping":1,"now":99999999999999999999999}'),
    "a missing field": framed(b'{"f":"done","id":1}'),
    "marks that are no list": framed(b'{"f":"marks","attempt":1,"rank":0,"first":0,"marks":{}}'),
    "a ping that was not sent": framed(b'{"f":"pong","n":1,"ping":9,"now":5}'),
    "deep": framed(b'{"f":"seen","what":"use","body":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}"),
    "a huge number within": framed(
        b'{"f":"seen","what":"node","body":{"node":{"a":[{"b":-99999999999999999999999}]}}}'
    ),
    "a long text": framed(json.dumps({"f": "bye", "why": "x" * 5000}).encode()),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_frame_ends_only_its_connection_and_says_why(data: bytes, tmp_path: Path) -> None:
    with running(tmp_path) as hub, box(hub, "n2") as good, box(hub) as bad:
        bad.sock.sendall(data)
        refused = bad.until("refused")
        assert refused["why"]
        assert bad.ended()
        assert polled(hub, Left)[-1].why == refused["why"]
        assert hub.refusals.counts() == {"malformed": 1}
        assert hub.refusals.last()[0].why.isprintable()
        good.send({"f": "done", "id": 1, "ok": True})
        assert isinstance(polled(hub, Received)[-1], Received)


def test_marks_of_an_agent_are_refused(tmp_path: Path) -> None:
    with running(tmp_path) as hub, RawClient(hub).tls() as agent:
        agent.hello("agent", token=hub._tokens.agent("n1"))
        agent.send(GOOD[1])
        assert agent.until("refused")["why"] == "only a box sends marks"


@pytest.mark.parametrize(
    "first",
    [
        GOOD[1],
        GOOD[4],
        {"f": "hello"},
        {"f": "hello", "v": "1"},
        {"f": "hello", "v": 1, "kind": "cat", "node": "n"},
    ],
)
def test_the_first_frame_is_a_hello(first: dict[str, Any], tmp_path: Path) -> None:
    with running(tmp_path) as hub, RawClient(hub).tls() as client:
        client.send(first)
        assert client.next()["f"] == "refused"
        assert client.ended() and hub.refusals.counts() == {"malformed": 1} and hub.poll() == []


def test_a_hello_above_its_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with running(tmp_path) as hub, RawClient(hub).tls() as client:
        client.sock.sendall(struct.pack(">I", wire.HELLO_BYTES + 1))
        assert "65536" in client.next()["why"]


def test_frames_in_pieces_and_in_one_piece_arrive_in_order(tmp_path: Path) -> None:
    marks = [{**GOOD[1], "first": n} for n in range(30)]
    data = b"".join(wire.encode(frame) for frame in marks)
    with running(tmp_path) as hub, box(hub) as client:
        for byte in data[:200]:
            client.sock.sendall(bytes([byte]))
        client.sock.sendall(data[200:])
        client.send({"f": "bye"})
        events = polled(hub, Left)
        assert isinstance(events[0], Joined)
        assert [e.frame.first for e in events if isinstance(e, Received)] == list(range(30))
        assert json.loads(bytes(events[1].frame.marks[0])) == MARK


def test_hello_and_the_first_frames_may_come_in_one_piece(tmp_path: Path) -> None:
    with running(tmp_path) as hub, RawClient(hub).tls() as client:
        hello = {
            "f": "hello",
            "v": 1,
            "kind": "box",
            "node": "n1",
            "job": "j",
            "token": hub.box_token("n1", "j"),
        }
        client.send({**hello, "now": boottime_ns()}, GOOD[1], GOOD[2])
        found: list[Any] = []
        while len(found) < 3:
            found += polled(hub, object)
        assert [type(event) for event in found] == [Joined, Received, Received]


def test_a_frame_of_the_largest_size_passes(tmp_path: Path) -> None:
    with running(tmp_path) as hub, box(hub) as client:
        empty = {"f": "seen", "what": "signs", "body": {"a": ""}}
        room = wire.FRAME_BYTES - len(wire.encode(empty)) + wire.HEADER.size
        client.send({**empty, "body": {"a": "x" * room}})
        assert len(polled(hub, Received)[-1].frame.body["a"]) == room


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=20,
    ),
    st.sampled_from([*GOOD, {"f": "hello", "v": 1, "kind": "box", "node": "n"}]),
    st.data(),
)
def test_a_frame_with_any_value_in_any_field_is_read_or_malformed(
    value: Any, frame: dict[str, Any], data: st.DataObject
) -> None:
    changed = {**frame, data.draw(st.sampled_from([*frame, "later"])): value}
    payload = json.dumps(changed).encode()
    for newer in (False, True):
        try:
            found = frames.from_client(payload, newer=newer)
        except wire.Malformed:
            continue
        if found is None:
            assert newer and changed["f"] not in wire.FROM_CLIENT
        elif not isinstance(found, frames.Marks):
            assert frames.from_client(frames.encoded(found)[4:]) == found


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_malformed(data: bytes) -> None:
    for read in (frames.from_client, frames.to_client):
        try:
            assert read(data, newer=True) is None or data.lstrip()[:1] == b"{"
        except wire.Malformed:
            pass


COMMANDS = [
    frames.Resume(1, {"0": 12}), frames.Prepare(1, 2, 3, leader=True), frames.Start(1, 2, 3, [frames.RankOrders(0, {"a": 1})]),
    frames.Stop(1, 2, 3, [0, 1], 5), frames.Release(1, 2, 3), frames.End(2), frames.Read(1, 2, 0, "log", -10),
    frames.Box(1, 2, "job", "token", {"A": "b"}), frames.Run(1, 2, "check", {"x": 1}), frames.Refused("a", "b"),
    frames.Welcome(1, 2, 3, 4), frames.Ping(1, 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("frame", COMMANDS, ids=lambda frame: type(frame).__name__)
def test_each_frame_of_the_hub_is_read_by_a_client_and_has_the_name_of_the_wire(
    frame: frames.ToClient,
) -> None:
    data = frames.encoded(frame)
    assert frames.to_client(data[4:]) == frame
    assert wire.decode(data[4:])["f"] == type(frame).__name__.lower()
    with pytest.raises(wire.Malformed):
        frames.from_client(data[4:])


def test_all_names_of_the_wire_have_a_struct() -> None:
    names = {type(frame).__name__.lower() for frame in COMMANDS}
    assert names == wire.TO_BOX | wire.TO_AGENT
