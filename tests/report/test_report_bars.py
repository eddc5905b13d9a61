"""The chart's bars: exact while they fit, thinned without losing time where they do not."""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from report.sample import START_NS, large, report
from unidle.ledger.taxonomy import GROUP_OF
from unidle.page.frame import deflated
from unidle.report.bars import PackedBars, pack
from unidle.report.model import DeviceTrack, TimelineBar

Decoded = tuple[int, int, str, int, int, int]  # start, end, leaf, first step, last step, pure

BARS = st.lists(
    st.tuples(
        st.integers(0, 3),  # gap
        st.integers(0, 50),  # length
        st.sampled_from(["useful", "start", "no_demand", "hang"]),
        st.sampled_from(["", "a", "b"]),
        st.integers(-1, 5),
    ),
    max_size=60,
)


def track_of(parts: list[tuple[int, int, str, str, int]], name: str = "n/0") -> DeviceTrack:
    bars, at = [], START_NS
    for gap, length, leaf, job, step in parts:
        bars.append(TimelineBar(at + gap, at + gap + length, leaf, GROUP_OF[leaf], job, 1, step))
        at += gap + length
    return DeviceTrack(name, "n", "cpu", tuple(bars))


def decode(packed: PackedBars) -> list[list[Decoded]]:
    data = zlib.decompress(base64.b64decode(packed.blob)) if packed.blob else b""
    numbers, value, shift = [], 0, 0
    for octet in data:
        value |= (octet & 127) << shift
        shift += 7
        if octet < 128:
            numbers.append(value)
            value = shift = 0
    total = sum(packed.counts)
    columns = iter(zip(*(numbers[k * total : (k + 1) * total] for k in range(6)), strict=True))
    tracks = []
    for count in packed.counts:
        at, bars = 0, []
        for _ in range(count):
            gap, length, context, step, further, impure = next(columns)
            start = at + gap
            at = start + length
            u = packed.unit_ns
            bars.append(
                (start * u, at * u, packed.contexts[context][0], step - 1, step - 1 + further, 1000 - impure)
            )
        tracks.append(bars)
    return tracks


@given(st.lists(BARS, max_size=4))
def test_small_charts_are_exact(tracks: list[list[tuple[int, int, str, str, int]]]) -> None:
    devices = [track_of(parts, f"n/{k}") for k, parts in enumerate(tracks)]
    packed = pack(devices, START_NS, START_NS + 10_000)
    wanted = [
        [
            (b.start_ns - START_NS, b.end_ns - START_NS, b.leaf, b.step, b.step, 1000)
            for b in d.bars
            if b.end_ns > b.start_ns
        ]
        for d in devices
    ]
    assert decode(packed) == wanted
    assert not packed.joined
    assert packed.bucket_ns == 0


@settings(deadline=None)
@given(st.lists(BARS, max_size=4), st.integers(0, 400))
def test_thinning_keeps_order_and_covered_time(
    tracks: list[list[tuple[int, int, str, str, int]]], limit: int
) -> None:
    devices = [track_of(parts, f"n/{k}") for k, parts in enumerate(tracks)]
    packed = pack(devices, START_NS, START_NS + 10_000, limit)
    for device, bars, sums in zip(devices, decode(packed), packed.leaf_ns, strict=True):
        assert all(a[1] <= b[0] for a, b in pairwise(bars))
        covered = sum(b.end_ns - b.start_ns for b in device.bars)
        assert sum(end - start for start, end, *_ in bars) == covered
        exact: Counter[str] = Counter()
        for b in device.bars:
            exact[b.leaf] += b.end_ns - b.start_ns
        assert sums == {leaf: ns for leaf, ns in exact.items() if ns}


def test_neighbours_with_one_cause_become_one_bar_with_all_their_steps() -> None:
    track = track_of([(0, 10, "useful", "a", n) for n in range(1, 41)] + [(0, 5, "hang", "a", -1)])
    packed = pack([track], START_NS, START_NS + 405, limit=40)
    assert decode(packed) == [[(0, 400, "useful", 1, 40, 1000), (400, 405, "hang", -1, -1, 1000)]]
    assert packed.joined
    assert packed.bucket_ns == 0


def test_a_merged_bar_has_the_leaf_with_most_time_and_says_how_pure_it_is() -> None:
    parts = [(0, 3 if k % 2 else 1, "hang" if k % 2 else "useful", "a", -1) for k in range(4_000)]
    packed = pack([track_of(parts)], START_NS, START_NS + 8_000, limit=60)
    bars = decode(packed)[0]
    assert packed.bucket_ns > 0
    assert {leaf for _, _, leaf, *_ in bars} == {"hang"}
    assert all(700 <= pure <= 800 for *_, pure in bars[:-1])


def test_bars_outside_the_window_are_cut() -> None:
    track = DeviceTrack(
        "n/0", "n", "cpu", (TimelineBar(0, 50, "useful", "step"), TimelineBar(50, 100, "hang", "held"))
    )
    assert decode(pack([track], 40, 60)) == [
        [(0, 10, "useful", -1, -1, 1000), (10, 20, "hang", -1, -1, 1000)]
    ]


def test_shares_of_a_cut_device_weigh_its_sums() -> None:
    bars = (TimelineBar(START_NS, START_NS + 1_000, "useful", "step"),)
    track = DeviceTrack("n/0", "n", "H100", bars, slice="n/0#1", share_ppm=250_000)
    assert pack([track], START_NS, START_NS + 1_000).leaf_ns == ({"useful": 250},)


def test_no_bars_are_no_blob() -> None:
    packed = pack([DeviceTrack("n/0", "n", "cpu", ())], 0, 10)
    assert (packed.blob, packed.counts, packed.leaf_ns) == (deflated(b""), (0,), ({},))


def test_a_window_of_years_still_fits_a_browsers_numbers() -> None:
    year_ns = 366 * 86_400 * 10**9
    track = DeviceTrack("n/0", "n", "cpu", (TimelineBar(START_NS, START_NS + year_ns, "useful", "step"),))
    packed = pack([track], START_NS, START_NS + year_ns)
    assert packed.unit_ns == 1_000
    assert year_ns // packed.unit_ns < 2**53


def test_the_limit_holds_for_many_random_bars() -> None:
    data = large(200, 40_000)
    packed = pack(data.devices, data.window_start_ns, data.window_end_ns, limit=60_000)
    assert len(packed.blob) <= 60_000
    assert packed.bars_in > packed.bars_out > 2_000


def test_the_sample_is_not_thinned() -> None:
    data = report()
    packed = pack(data.devices, data.window_start_ns, data.window_end_ns)
    assert packed.bars_in == packed.bars_out
