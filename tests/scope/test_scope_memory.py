"""Memory and calls by name and line: sums stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unidle.scope.call_counts import counts_lines, counts_of
from unidle.scope.memory import sites_of, size
from unidle.scope.model import Call, Frame, Profile, StackMemory

MB = 1_000_000


def profile(*held: StackMemory, calls: tuple[Call, ...] = ()) -> Profile:
    frames = (
        Frame("python", "train", "/home/me/train.py", 7),
        Frame("python", "keep", "/home/me/train.py", 12),
        Frame("native", "c10::alloc_cpu", module="libc10.so"),
    )
    stacks = ((0, 2), (0, 1, 2), (2,))
    return Profile("T0", 0, 2_000_000_000, frames, stacks, memory=held, calls=calls)


def test_allocations_belong_to_the_deepest_line_of_own_code() -> None:
    sites = sites_of(
        profile(StackMemory(1, 0, "host", 5 * MB, 5, 0, 0), StackMemory(1, 1, "host", 3 * MB, 3, MB, 1))
    )
    assert [(s.place.where, s.allocated_bytes, s.live_bytes) for s in sites] == [
        ("train.py:7", 5 * MB, 0),
        ("train.py:12", 3 * MB, MB),
    ]


def test_devices_are_apart_and_code_without_python_has_its_function() -> None:
    sites = sites_of(
        profile(StackMemory(1, 2, "host", MB, 1, 0, 0), StackMemory(1, 2, "cuda:0", 2 * MB, 1, 0, 0))
    )
    assert [(s.place.function, s.device) for s in sites] == [
        ("c10::alloc_cpu", "cuda:0"),
        ("c10::alloc_cpu", "host"),
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**12), st.integers(0, 99))))
def test_no_byte_is_lost_between_rows_and_sites(rows: list[tuple[int, int, int]]) -> None:
    held = [StackMemory(1, stack, "host", n, pieces, n // 2, pieces // 2) for stack, n, pieces in rows]
    sites = sites_of(profile(*held))
    assert sum(s.allocated_bytes for s in sites) == sum(h.allocated_bytes for h in held)
    assert sum(s.live for s in sites) == sum(h.live for h in held)
    assert len({(s.place, s.device) for s in sites}) == len(sites)


def test_sizes_have_three_digits() -> None:
    assert [size(n) for n in (0, 999, 1000, 12_345, 999_600, 5 * 10**13)] == [
        "0 B", "999 B", "1.0 kB", "12.3 kB", "1.0 MB", "50.0 TB",
    ]  # fmt: skip


def test_calls_of_all_threads_are_one_row_each_with_what_a_step_has() -> None:
    calls = (
        Call(1, 1, "aten::add", "operator", 30),
        Call(1, 2, "aten::add", "operator", 10),
        Call(1, 1, "cudaMemcpy", "copy", 4, 8_000_000, 4 * MB),
        Call(1, 1, "malloc", "alloc", 10**6),
    )
    told = profile(calls=calls)
    assert [(c.name, c.count, c.ns) for c in counts_of(told)] == [
        ("malloc", 10**6, None), ("aten::add", 40, None), ("cudaMemcpy", 4, 8_000_000),
    ]  # fmt: skip
    lines = counts_lines(told, 4, 80)
    assert lines[0] == "Calls (of a step)"
    assert "10.0  operator    aten::add" in lines[1]
    assert "1.0  copy        cudaMemcpy, 1.0 MB, 2.00 ms" in lines[2]
    assert counts_lines(told, None, 80)[0] == "Calls (a second)"
    assert counts_lines(profile(), None, 80) == []
