"""Counters that only go up, read again and again, by one reader after another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unidle.guard.counters import (
    COUNTERS,
    LASTS,
    CounterGrowth,
    GpuReading,
    MachineReading,
    counted_slow,
    counted_up,
    grown,
    machine_faults,
)

WINDOW = 1000
READINGS = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 5)), min_size=1, max_size=60)


@given(READINGS)
def test_what_is_known_is_the_sum_of_what_was_added_within_the_window(
    readings: list[tuple[int, int]],
) -> None:
    at_ns, count = 0, 7
    known = grown(None, count, at_ns, WINDOW)
    added: list[tuple[int, int]] = []
    for later, more in readings:
        at_ns, count = at_ns + later, count + more
        added.append((at_ns, more))
        known = grown(known, count, at_ns, WINDOW)
        wanted = sum(one for when, one in added if when > at_ns - WINDOW)
        assert known.since(at_ns - WINDOW) == wanted
        assert known.since(at_ns) == 0


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40))
def test_a_counter_that_goes_backwards_adds_nothing(counts: list[int]) -> None:
    known: CounterGrowth | None = None
    total = 0
    for at_ns, count in enumerate(counts):
        total += max(count - known.count, 0) if known is not None else 0
        known = grown(known, count, at_ns, WINDOW)
    assert known is not None and known.since(-1) == total


@given(st.lists(st.integers(1, 9), min_size=70, max_size=200))
def test_memory_is_bounded_and_many_are_never_taken_for_few(steps: list[int]) -> None:
    known, count = grown(None, 0, 0, WINDOW), 0
    for at_ns, more in enumerate(steps, 1):
        count += more
        known = grown(known, count, at_ns, WINDOW)
    assert len(known.steps) <= 64
    assert known.since(0) == count


@given(st.integers(0, 1000), st.integers(1, 50))
def test_after_a_long_absence_no_more_than_the_windows_part_counts(more: int, windows: int) -> None:
    known = grown(CounterGrowth(0, 0), more, windows * WINDOW, WINDOW)
    assert known.since(0) == more // windows


def test_each_reason_that_slows_a_gpu_counts_its_readings_in_a_row() -> None:
    reading: GpuReading | None = None
    counts = []
    for slowed in (0x40, 0x48, 0x40, 0x00, 0x40):
        times = counted_slow(reading, slowed)
        reading = GpuReading(slowed=slowed, slowed_times=times)
        counts.append(times)
    assert counts == [{0x40: 1}, {0x08: 1, 0x40: 2}, {0x40: 3}, {}, {0x40: 1}]


def test_what_a_machine_had_at_the_first_reading_is_no_fault() -> None:
    now = MachineReading(down_times={"eth0": LASTS}, errors={"mc0": 5})
    assert list(machine_faults(None, now, {})) == []
    before = MachineReading(errors={"mc0": 4})
    assert [found.kind for found in machine_faults(before, now, {})] == ["nic", "mce"]


def test_only_known_counters_of_links_are_followed() -> None:
    name = f"eth0 {next(iter(COUNTERS))}"
    found = counted_up(None, {name: 3, "eth0 unknown": 3}, 10)
    assert {link: growth.count for link, growth in found.items()} == {name: 3}
