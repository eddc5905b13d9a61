"""What grows for ever is told, with its line and its rate; what fills, moves, breathes or is small is not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.scope.memory import growth_lines, memory_json, memory_lines
from unidle.scope.memory_difference import memory_changes
from unidle.scope.memory_growth import common_line, growths_of
from unidle.scope.merge import merge
from unidle.scope.model import Frame, Moment, Profile, StackMemory, Truncation

KB, MB = 1000, 1_000_000
SECONDS = 30
FRAMES = (
    Frame("python", "<module>", "/home/me/train.py", 30),
    Frame("python", "forward", "/home/me/model.py", 7),
    Frame("native", "c10::alloc_cpu(unsigned long)", module="libc10.so"),
    Frame("native", "malloc", module="libc.so.6"),
    Frame("native", "mmap", module="libc.so.6"),
    Frame("native", "sbrk", module="libc.so.6"),
    Frame("python", "remember", "/home/me/train.py", 12),
    Frame("python", "_find_and_load", "<frozen importlib._bootstrap>", 1178),
)
TENSOR, OBJECT, ARENA, HEAP, OTHER, IMPORTED = range(6)
STACKS = ((0, 1, 2), (0, 1, 3), (0, 1, 4), (0, 1, 5), (0, 6, 2), (0, 7, 6, 3))
Live = Callable[[float], tuple[float, float]]  # seconds to bytes and pieces


def look(*sites: tuple[int, str, Live], cuts: tuple[Truncation, ...] = (), every_s: float = 0.5) -> Profile:
    """A look of half a minute at sites whose live memory follows a function of the time."""
    moments, held = [], []
    for stack, device, live in sites:
        before = None
        for n in range(1, int(SECONDS / every_s) + 1):
            now = tuple(round(value) for value in live(n * every_s))
            if now != before:
                moments.append(Moment(1, stack, device, round(n * every_s * 1e9), *now))
            before = now
        held.append(StackMemory(1, stack, device, 10 * now[0], 10 * now[1], *now))
    return Profile(
        "T0", 0, SECONDS * 10**9, FRAMES, STACKS, memory=tuple(held), moments=tuple(moments), cuts=cuts
    )


def pieces_of(n_bytes: float, rate: float, start: float = 0) -> Live:
    return lambda t: (n_bytes * (start + int(rate * t)), start + int(rate * t))


def test_kept_tensors_are_told_with_line_rate_and_evidence() -> None:
    profile = look((TENSOR, "host", pieces_of(200 * KB, 10)))
    (found,) = growths_of(profile, steps_s=5)
    assert found.place.where == "model.py:7"
    assert found.bytes_s == pytest.approx(2 * MB, rel=0.06)
    assert found.bytes_step == pytest.approx(400 * KB, rel=0.06)
    assert found.pieces_s == pytest.approx(10, rel=0.06)
    assert list(found.floors) == sorted(found.floors)
    said = " ".join(" ".join(growth_lines(profile, 80, 5)).split())
    assert re.search(r"Memory grows by 2\.0 MB/s, 40\d kB a step, at forward \(model\.py:7\): a leak\?", said)
    assert "10 blocks a second more than are freed" in said
    assert "live in each sixth of 30" in said or "live in each sixth of 29" in said
    assert ".detach()" in said
    (told,) = memory_json(profile, 5)
    assert told["suspect"] and told["growth"]["bytes_step"] == pytest.approx(400 * KB, rel=0.06)
    assert max(map(len, memory_lines(profile, 80, 5))) <= 80


def test_lines_that_leak_together_are_told_with_the_line_that_calls_them_all() -> None:
    profile = look((TENSOR, "host", pieces_of(MB, 2)), (OTHER, "host", pieces_of(MB, 1)))
    found = growths_of(profile)
    assert [one.place.where for one in found] == ["model.py:7", "train.py:12"]
    common = common_line(profile, found)
    assert common is not None
    assert common.where == "train.py:30"
    assert "at 2 lines, all called from <module> (train.py:30)" in " ".join(growth_lines(profile, 120))


def noise(seed: int, least: float, most: float) -> Live:
    chance = random.Random(seed)
    values = [chance.uniform(least, most) for _ in range(10_000)]
    return lambda t: (values[int(t * 2)], 10)


@pytest.mark.parametrize(
    ("what", "live"),
    [
        ("a cache that fills in its first steps", lambda t: (min(t, 6) * 5 * MB, min(t, 6) * 50)),
        ("a cache that fills for half of the look", lambda t: (min(t, 15) * 5 * MB, min(t, 15) * 50)),
        ("a cache that fills ever slower", lambda t: (90 * MB * (1 - 2 ** (-t / 4)), 900 * (1 - 2 ** (-t / 4)))),
        ("a moving average", lambda _: (40 * MB, 400)),
        ("a window that moves", lambda t: (40 * MB + (t * 7 % 3) * MB, 400 + t * 7 % 3)),
        ("a step that takes and gives back", lambda t: (MB + 60 * MB * (t % 1), 10 + 50 * (t % 1))),
        ("garbage that is collected now and then", lambda t: (MB + (t % 8) * 5 * MB, 10 + (t % 8) * 20)),
        ("an evaluation at the end", lambda t: (MB if t < 27 else 80 * MB, 10 if t < 27 else 90)),
        ("one large block", lambda t: (500 * MB if t > 9 else 0, 1 if t > 9 else 0)),
        ("what is given back", lambda t: ((SECONDS + 1 - t) * MB, (SECONDS + 1 - t) * 10)),
        ("a queue", noise(1, MB, 30 * MB)),
        ("a list of losses", pieces_of(96, 60)),
    ],
)  # fmt: skip
def test_nothing_is_said_of(what: str, live: Live) -> None:
    profile = look((TENSOR, "host", live))
    assert growths_of(profile, steps_s=60) == [], what
    assert growth_lines(profile, 80, 60) == []
    assert not any(one["suspect"] for one in memory_json(profile, 60))


def test_modules_that_are_imported_while_it_looks_are_no_leak() -> None:
    assert not growths_of(look((IMPORTED, "host", pieces_of(200 * KB, 10))))


def test_slow_growth_of_few_large_pieces_is_told_where_it_never_stops() -> None:
    arenas = look((ARENA, "pages", lambda t: (int(t / 3.1) << 20, int(t / 3.1))))
    (found,) = growths_of(arenas)
    assert (found.kind, found.place.where) == ("pages", "model.py:7")
    assert "arenas" in " ".join(growth_lines(arenas, 80))


def test_the_heap_is_named_only_where_no_line_is_seen_to_keep_anything() -> None:
    heap = (HEAP, "pages", pieces_of(135 * KB, 4))
    (found,) = growths_of(look(heap))
    assert found.kind == "heap"
    assert "may come from other lines" in " ".join(" ".join(growth_lines(look(heap), 80)).split())
    both = growths_of(look(heap, (TENSOR, "host", pieces_of(MB, 4))))
    assert [one.kind for one in both] == ["tensor memory"]


def test_what_was_not_followed_to_the_end_is_judged_by_what_was_seen_and_marked() -> None:
    cut = (Truncation("malloc", 12 * 10**9),)
    stale: Live = lambda t: (min(t, 12) * MB, min(t, 12) * 100)  # noqa: E731
    (found,) = growths_of(look((OBJECT, "host", stale), cuts=cut))
    assert found.seconds == pytest.approx(11.5)
    assert growths_of(look((OBJECT, "host", stale))) == []
    lines = "\n".join(memory_lines(look((OBJECT, "host", stale), cuts=cut), 80))
    assert "at least" in lines
    assert "malloc: followed for 12.0 s only" in lines
    assert ">" in lines
    tensors = "\n".join(memory_lines(look((TENSOR, "host", stale), cuts=cut), 80))
    assert "at least" not in tensors


@settings(max_examples=60, deadline=None)
@given(
    st.floats(20 * KB, 5 * MB),
    st.floats(2, 40),
    st.integers(0, 1000),
    st.sampled_from([0.25, 0.5, 1.0]),
)
def test_a_steady_leak_is_found_beside_any_noise(
    piece: float, rate: float, seed: int, every_s: float
) -> None:
    leak = pieces_of(piece, rate)
    wave = noise(seed, 0, piece * rate * 4)
    profile = look((TENSOR, "host", leak), (OTHER, "host", lambda t: (wave(t)[0], 10)), every_s=every_s)
    assert "model.py:7" in [one.place.where for one in growths_of(profile)]
    assert growths_of(profile)[0].bytes_s > 0


def test_windows_of_one_look_are_put_together_with_what_lives_at_the_end() -> None:
    live = pieces_of(MB, 2)
    whole = look((TENSOR, "host", live))
    half = SECONDS * 10**9 // 2

    def part(start: int, end: int, lives: tuple[int, int]) -> Profile:
        moments = tuple(m for m in whole.moments if start < m.time_ns <= end)
        return Profile(
            "T0",
            start,
            end,
            FRAMES,
            STACKS,
            memory=(StackMemory(1, TENSOR, "host", 30 * MB, 30, *lives),),
            moments=moments,
        )

    both = merge([part(0, half, (30 * MB, 30)), part(half, 2 * half, (60 * MB, 60))])
    assert [m.time_ns for m in both.moments] == [m.time_ns for m in whole.moments]
    (held,) = both.memory
    assert (held.allocated_bytes, held.live_bytes, held.live) == (60 * MB, 60 * MB, 60)
    assert [g.floors for g in growths_of(both)] == [g.floors for g in growths_of(whole)]


def test_moments_and_cuts_come_back_from_json_and_older_files_have_none() -> None:
    profile = look((TENSOR, "host", pieces_of(MB, 2)), cuts=(Truncation("malloc", 5),))
    told = profile.to_json()
    assert Profile.from_json(told) == profile
    del told["moments"], told["cuts"]
    assert Profile.from_json(told).moments == ()


def test_two_looks_are_compared_by_line() -> None:
    before = look((TENSOR, "host", pieces_of(MB, 0)), (OTHER, "host", pieces_of(MB, 1)))
    after = look((TENSOR, "host", pieces_of(MB, 2)), (OBJECT, "cuda:0", pieces_of(MB, 1)))
    changes = memory_changes(before, after)
    assert [(c.place.where, c.device, c.live_bytes) for c in changes] == [
        ("model.py:7", "host", 60 * MB), ("model.py:7", "cuda:0", 30 * MB), ("train.py:12", "host", -30 * MB),
    ]  # fmt: skip
    assert memory_changes(after, after) == []
