"""What decides in the server: batches, blocks, stop strings, routes, choice of tokens, forecasts of pieces."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unidle.fill.serve.batching import Batcher, Decode, PromptChunk, Sizes
from unidle.fill.serve.kv.pool import BlockPool
from unidle.fill.serve.piece_times import PieceTimes
from unidle.fill.serve.router import Router
from unidle.fill.serve.sampling import choose
from unidle.fill.serve.text.stops import StopFilter


def test_a_block_is_given_back_once() -> None:
    pool = BlockPool(4)
    taken = pool.take(3)
    assert taken is not None and pool.take(2) is None and pool.free == 1
    with pytest.raises(ValueError, match="not taken"):
        pool.give([taken[0], taken[0]])
    pool.give(taken)
    with pytest.raises(ValueError, match="not taken"):
        pool.give(taken[:1])
    assert pool.used == 0 and pool.free == 4


def take_tokens(batcher: Batcher, step: Decode, left: dict[tuple[int, int], int]) -> None:
    """One token of each row of a step; ``left``: tokens that each sample still needs."""
    for request, sample in step.rows:
        left[request.id, sample] -= 1
        if not left[request.id, sample]:
            del left[request.id, sample]
            batcher.ended(request.id, sample)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 3)), max_size=12), st.randoms()
)
def test_every_request_is_answered_in_order_and_no_block_is_left(
    wanted: list[tuple[int, int, int]], chance: random.Random
) -> None:
    batcher = Batcher(BlockPool(16), 8, 4)
    left: dict[tuple[int, int], int] = {}
    begun = list[int]()
    for number, (prompt, most, samples) in enumerate(wanted):
        sizes = Sizes(prompt, prompt + most, samples)
        if batcher.fits_ever(sizes):
            batcher.add(number, sizes)
            left |= {(number, sample): most for sample in range(samples)}
    chunks = dict.fromkeys({number for number, _ in left}, 3)
    last: object = None
    while True:
        begun += [one.id for one in batcher.begin()]
        step = batcher.next_step()
        assert batcher.running <= 4
        if step is None:
            break
        if isinstance(step, PromptChunk):
            assert not isinstance(last, PromptChunk) or not any(
                one for one in left if one[0] in begun and chunks[one[0]] == 0
            )
            number = step.request.id
            chunks[number] -= 1
            if not chunks[number]:
                batcher.prefilled(number)
        else:
            assert isinstance(step, Decode)
            take_tokens(batcher, step, left)
        if begun and chance.random() < 0.05:
            gone = chance.choice(begun)
            batcher.cancel(gone)
            left = {key: count for key, count in left.items() if key[0] != gone}
        last = step
    assert not left and begun == sorted(begun)
    assert batcher.pool.used == 0 and batcher.waiting == batcher.running == 0


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.randoms())
def test_text_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stops: list[str], chance: random.Random
) -> None:
    found, filtered, at = "", StopFilter(stops), 0
    while at < len(text) and not filtered.hit:
        step = chance.randint(1, 4)
        found += filtered.feed(text[at : at + step])
        at += step
    found += filtered.rest()
    places = [text.find(stop) for stop in stops if stop in text[:at]]
    assert filtered.hit == bool(places)
    assert found == (text[: min(places)] if places else text)


class _Seeded:
    def __init__(self, temperature: float, top_p: float = 1.0, top: int | None = None) -> None:
        self.temperature, self.top_p, self.top = temperature, top_p, top
        self._random = random.Random(1)

    def number(self) -> float:
        return self._random.random()


def test_tokens_are_drawn_by_their_probabilities_within_top_p() -> None:
    weights = torch.tensor([0.5, 0.25, 0.15, 0.1])
    one = _Seeded(1.0, 0.75)
    drawn = [choose(weights.log()[None], [one])[0].token for _ in range(2000)]
    assert set(drawn) == {0, 1}
    assert drawn.count(0) / len(drawn) == pytest.approx(2 / 3, abs=0.05)
    mixed = choose(weights.log().expand(3, -1), [_Seeded(0.0, top=2), _Seeded(1.0), _Seeded(0.001, top=0)])
    assert mixed[0].token == mixed[2].token == 0
    assert mixed[0].logprob == pytest.approx(-0.6931, abs=1e-3) and [token for token, _ in mixed[0].top] == [
        0,
        1,
    ]
    assert mixed[1].top == () and mixed[2].top == ()


def test_a_request_takes_bubbles_only_while_it_would_be_in_time() -> None:
    router = Router(slo_s=2.0)
    assert router.choose(100, bubbles=False) == "dedicated"
    assert router.choose(100, bubbles=True) == "bubbles"
    router.sent(100, 10.0)
    assert router.choose(100, bubbles=True) == "dedicated"  # the rate is not known yet
    router.left(100, 10.5, prefilled=True)  # 200 tokens a second
    assert router.choose(200, bubbles=True) == "bubbles" and router.choose(201, bubbles=True) == "dedicated"
    router.sent(150, 11.0)
    assert router.choose(51, bubbles=True) == "dedicated"
    router.left(150, 12.0, prefilled=False)
    assert router.choose(200, bubbles=True) == "dedicated"  # it was slower than the rate


def test_the_forecast_of_a_piece_grows_with_what_it_reads() -> None:
    times = PieceTimes()
    assert not times.known
    for begin in range(0, 1024, 256):
        times.took(begin, begin + 256, "inner", 100_000 + 256 * begin)
    assert 100_000 < times.length_ns(0, 256, "inner") < 130_000
    assert times.length_ns(2048, 2304, "inner") > 600_000
    assert times.length_ns(0, 256, "final") > 0


def test_a_kind_of_piece_that_one_slow_run_made_too_long_is_tried_again() -> None:
    times = PieceTimes()
    for ns in (100_000, 101_000, 5_000_000, 7_000_000, 99_000):
        times.took(0, 256, "last", ns)
    assert times.length_ns(0, 256, "last") > 1_000_000
    for _ in range(2):
        times.doubt("last")
    assert times.length_ns(0, 256, "last") < 150_000
    for _ in range(10):
        times.doubt("last")
    assert 99_000 < times.length_ns(0, 256, "last") < 150_000
