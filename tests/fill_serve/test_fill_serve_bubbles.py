"""A filler that prefills for a server: the same answers by both routes, and what happens when it goes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fill_run.running import left_of_this_process, supervised, training
from fill_serve.doors import Door
from unidle.fill.runtime.process import FillerOrder
from unidle.fill.runtime.supervise import FillSupervisor
from unidle.fill.serve.bubbles import BubblePrefill
from unidle.fill.sliced import FillPiece, Room
from waiting import wait_until

ROOM = Room(10**12, 1 << 40)
PROMPT = "the quick brown fox jumps over the lazy dog, and a bubble is a wait for its gang " * 2


@contextlib.contextmanager
def answering(served: Door, body: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """A request in a thread; what is yielded waits for its answer."""
    found = list[Any]()
    thread = threading.Thread(target=lambda: found.append(served.post("/v1/completions", body)))
    thread.start()

    def answer() -> Any:
        thread.join(120)
        status, text = found[0]
        assert status == 200, text
        return text["choices"][0]["text"]

    yield answer
    thread.join(120)


@contextlib.contextmanager
def connected(served: Door, place: Path) -> Iterator[BubblePrefill]:
    """A filler that the server has greeted. It is gone at the end, and nothing is held for it."""
    filler = BubblePrefill(str(place / "tiny"), str(place / "bubbles"), chunk_tokens=16)
    try:
        wait_until(lambda: served.metric("workers") == 2)
        yield filler
    finally:
        filler.close()
    wait_until(lambda: served.metric("workers") == 1)
    wait_until(served.at_rest)


def piece_of(filler: BubblePrefill) -> FillPiece:
    return wait_until(lambda: filler.next_piece(ROOM), what="a piece")


def test_a_prompt_prefilled_in_pieces_has_the_answer_of_dedicated_devices(served: Door, place: Path) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "n": 2}
    status, alone = served.post("/v1/completions", body)
    assert status == 200
    with connected(served, place) as filler, answering(served, body) as answer:
        assert piece_of(filler).memory_bytes > 0
        assert filler.next_piece(Room(10**12, 1000)) is None  # it holds more than that
        piece_of(filler)
        filler.run()
        assert filler.give_up() > 0  # and it begins again
        units, pieces = 0, 0
        while (piece := filler.next_piece(ROOM)) is not None:
            units, pieces = units + piece.units, pieces + 1
            filler.run()
        assert answer() == alone["choices"][0]["text"]
    assert units == alone["usage"]["prompt_tokens"]
    assert pieces == 3 * -(-units // 16)


def test_a_filler_that_goes_hands_its_prompts_to_dedicated_devices(served: Door, place: Path) -> None:
    before = served.metric("spilled_total")
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4}
    with connected(served, place) as filler, answering(served, body) as answer:
        piece_of(filler)
        filler.run()
        filler.close()
        assert isinstance(answer(), str)
    assert served.metric("spilled_total") == before + 1


@pytest.mark.usefixtures("groups")
def test_a_prompt_is_prefilled_in_the_waits_of_a_rank_that_trains(
    served: Door, place: Path, tmp_path: Path
) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    status, alone = served.post("/v1/completions", body)
    assert status == 200
    before = served.metric("requests_total", 'route="bubbles",outcome="answered"')
    found = list[Any]()
    client = threading.Thread(target=lambda: found.append(served.post("/v1/completions", body)))

    def answered(_: FillSupervisor) -> bool:
        if client.ident is None and served.metric("workers") == 2:
            client.start()
        return bool(found)

    filler = FillerOrder("unidle.fill.serve.bubbles:BubblePrefill", {
        "model": str(place / "tiny"), "door": str(place / "bubbles"), "chunk_tokens": 16,
    }, piece_ns=5_000_000, memory_bytes=2 << 30)  # fmt: skip
    with training() as (process, rank):
        filled, _, _ = supervised(filler, rank, tmp_path, answered)
        assert process.poll() is None
    client.join()
    assert found[0] == (200, alone | {key: found[0][1][key] for key in ("id", "created")})
    assert served.metric("requests_total", 'route="bubbles",outcome="answered"') == before + 1
    assert not filled.endings
    assert filled.sums["units"] == alone["usage"]["prompt_tokens"]
    assert filled.sums["pieces"] == 3 * -(-filled.sums["units"] // 16)
    wait_until(lambda: served.metric("workers") == 1)
    wait_until(served.at_rest)
    assert left_of_this_process() == []
