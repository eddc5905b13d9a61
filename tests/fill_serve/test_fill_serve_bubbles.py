"""A filler that prefills for a server: the same answers by both routes, and what happens when it goes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fill_serve.doors import Door, door
from fill_serve.models import write_model
from unidle.fill.serve.bubbles import BubblePrefill
from unidle.fill.sliced import Piece, Room
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


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Door]:
    write_model(tmp_path / "tiny", "llama")
    with door(
        tmp_path / "tiny",
        tmp_path / "log",
        "--bubbles",
        str(tmp_path / "s"),
        "--slo-ttft",
        "1000",
        "--chunk-tokens",
        "16",
    ) as found:
        yield found


def piece_of(filler: BubblePrefill) -> Piece:
    return wait_until(lambda: filler.next_piece(ROOM), what="a piece")


def test_a_prompt_prefilled_in_pieces_has_the_answer_of_dedicated_devices(
    served: Door, tmp_path: Path
) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "n": 2}
    status, alone = served.post("/v1/completions", body)
    assert status == 200
    filler = BubblePrefill(str(tmp_path / "tiny"), str(tmp_path / "s"), chunk_tokens=16)
    wait_until(lambda: served.metric("workers") == 2)
    with answering(served, body) as answer:
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
    assert units == alone["usage"]["prompt_tokens"] and pieces == 3 * -(-units // 16)
    wait_until(lambda: served.metric("requests_total") == 2)
    wait_until(served.at_rest)
    filler.close()


def test_a_filler_that_goes_hands_its_prompts_to_dedicated_devices(served: Door, tmp_path: Path) -> None:
    filler = BubblePrefill(str(tmp_path / "tiny"), str(tmp_path / "s"), chunk_tokens=16)
    wait_until(lambda: served.metric("workers") == 2)
    with answering(served, {"model": "tiny", "prompt": PROMPT, "max_tokens": 4}) as answer:
        piece_of(filler)
        filler.run()
        filler.close()
        assert isinstance(answer(), str)
    assert served.metric("spilled_total") == 1
    wait_until(served.at_rest)
