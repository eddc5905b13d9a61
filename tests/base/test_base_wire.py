"""Frames: whole ones come out as they went in, whatever the pieces; broken ones are refused before they are held."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle import wire

FRAMES = st.lists(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=4), max_size=6
)


@given(FRAMES, st.lists(st.integers(1, 40), max_size=30))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(
    contents: list[dict[str, object]], sizes: list[int]
) -> None:
    frames = [{**content, "f": "x"} for content in contents]
    data = b"".join(map(wire.encode, frames))
    unframer, found = wire.Unframer(), []
    for size in [*sizes, len(data) + 1]:
        found += unframer.feed(data[:size])
        data = data[size:]
    assert [wire.decode(payload) for payload in found] == json.loads(
        json.dumps(frames)
    ) and unframer.held == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_malformed(data: bytes) -> None:
    try:
        for payload in wire.Unframer(64).feed(data):
            assert isinstance(wire.decode(payload)["f"], str)
    except wire.Malformed:
        pass


def test_a_length_out_of_bounds_is_refused_by_its_header_alone() -> None:
    for length in (0, 65, 2**32 - 1):
        with pytest.raises(wire.Malformed, match="not within 1 and 64"):
            wire.Unframer(64).feed(wire.HEADER.pack(length))


def test_the_bound_can_change_between_two_frames() -> None:
    unframer = wire.Unframer(20)
    data = wire.encode({"f": "a"}) + wire.encode({"f": "b", "text": "x" * 50})
    assert unframer.one(data) == b'{"f":"a"}'
    unframer.limit = 100
    assert unframer.one() is not None and unframer.one() is None


def test_half_a_surrogate_pair_does_not_break_a_frame() -> None:
    assert wire.decode(wire.encode({"f": "\udc80é"})[4:]) == {"f": "?é"}


def test_no_frame_is_made_that_would_be_refused() -> None:
    with pytest.raises(ValueError, match="above the limit"):
        wire.encode({"f": "x" * wire.FRAME_BYTES})


def test_versions_one_apart_speak_with_each_other() -> None:
    assert [wire.speaks(wire.VERSION + apart) for apart in (-2, -1, 0, 1, 2)] == [
        False,
        True,
        True,
        True,
        False,
    ]
