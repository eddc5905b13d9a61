"""The index of windows gives what a plain search of them gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unidle.fill.policy.index import NEVER, WindowIndex, fluid_end_ns
from unidle.fill.policy.windows import FillWindow

rows = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=12).map(
        lambda parts: [
            FillWindow(0, end - length, end)
            for k, (_, length) in enumerate(parts)
            for end in (sum(gap + each for gap, each in parts[: k + 1]),)
        ]
    ),
    min_size=1,
    max_size=6,
)


def made(windows: list[list[FillWindow]], origin: int = 0) -> WindowIndex:
    index = WindowIndex([(device,) for device in range(len(windows))])
    for device, own in enumerate(windows):
        index.put(
            device,
            [
                each._replace(device=device, start_ns=each.start_ns + origin, end_ns=each.end_ns + origin)
                for each in own
            ],
        )
    return index


def searched(windows: list[list[FillWindow]], free: list[int], now: int, work: int) -> list[tuple[int, int]]:
    found = [(fluid_end_ns(own, max(free[p], now), work), p) for p, own in enumerate(windows)]
    return sorted((end, p) for end, p in found if end is not None)


@given(rows, st.data())
def test_the_index_finds_what_a_search_of_all_windows_finds(
    windows: list[list[FillWindow]], data: st.DataObject
) -> None:
    index = made(windows)
    free = [data.draw(st.integers(0, 300)) for _ in windows]
    for pipeline, moment in enumerate(free):
        index.move(pipeline, moment)
    now, work = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 200))
    wanted = searched(windows, free, now, work)
    for count in (1, 2, len(windows)):
        assert index.earliest(work, now, count) == wanted[:count]


@given(rows, st.data())
def test_windows_that_change_are_found_as_if_they_had_been_so_from_the_begin(
    windows: list[list[FillWindow]], data: st.DataObject
) -> None:
    index = made([data.draw(rows)[0] for _ in windows])
    for device, own in enumerate(windows):
        index.put(device, own)
    now, work = data.draw(st.integers(0, 300)), data.draw(st.integers(1, 200))
    assert index.earliest(work, now, len(windows)) == searched(windows, [0] * len(windows), now, work)


@given(rows, st.integers(1, 200), st.integers(0, 300))
def test_a_run_of_many_hours_moves_the_origin_and_changes_nothing(
    windows: list[list[FillWindow]], work: int, now: int
) -> None:
    late = 3 * NEVER
    index = made(windows)
    index.move(0, 17)
    for device, own in enumerate(windows):
        index.put(device, [FillWindow(device, each.start_ns + late, each.end_ns + late) for each in own])
    wanted = searched(windows, [0] * len(windows), now, work)
    assert index.earliest(work, now + late, len(windows)) == [(end + late, p) for end, p in wanted]


def test_more_windows_than_a_row_has_room_for_are_all_kept() -> None:
    many = [FillWindow(0, 10 * k, 10 * k + 5) for k in range(100)]
    index = made([many, many[:3]])
    assert index.earliest(5 * 100, 0, 2) == [(995, 0)]
