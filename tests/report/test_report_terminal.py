"""The waterfall as text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from report.sample import START_NS, bar, report
from unidle.errors import UnidleError
from unidle.ledger.taxonomy import GROUP_OF, GROUPS
from unidle.report.model import DeviceTrack, LeafTime, ReportData
from unidle.report.terminal import waterfall
from unidle.report.totals import waterfall_lines

ANSI = re.compile(r"\x1b\[[0-9;]*m")
LEAVES = [leaf for leaves in GROUPS.values() for leaf in leaves]
TOTALS = st.lists(
    st.builds(
        lambda leaf, ns, how, cost: LeafTime(leaf, GROUP_OF[leaf], ns, how, cost),
        st.sampled_from(LEAVES),
        st.integers(0, 10**17),
        st.sampled_from(["measured", "inferred", "modelled"]),
        st.none() | st.floats(0, 1e9),
    ),
    max_size=25,
)


def data_of(leaves: list[LeafTime], title: str = "t", store: str = "s.db") -> ReportData:
    capacity = sum(leaf.ns for leaf in leaves)
    return ReportData(title, START_NS, store, START_NS, START_NS + 10**12, capacity, tuple(leaves))


def test_the_sample_looks_like_this() -> None:
    golden = Path(__file__).with_name("terminal.txt").read_text(encoding="utf-8")
    assert waterfall(report()) == golden


def test_colour_changes_nothing_but_colour() -> None:
    plain, coloured = waterfall(report()), waterfall(report(), colour=True)
    assert "\x1b" not in plain
    assert coloured != plain
    assert ANSI.sub("", coloured) == plain


@settings(deadline=None)
@given(TOTALS, st.text(max_size=200), st.text(max_size=200), st.integers(20, 200), st.booleans())
def test_no_line_is_wider_than_asked(
    leaves: list[LeafTime], title: str, store: str, width: int, colour: bool
) -> None:
    shown = ANSI.sub("", waterfall(data_of(leaves, title, store), width, colour))
    assert max(cell_len(line) for line in shown.splitlines()) <= max(width, 60)


@given(TOTALS)
def test_groups_and_leaves_add_up_to_the_capacity(leaves: list[LeafTime]) -> None:
    data = data_of(leaves)
    groups = waterfall_lines(data)
    assert sum(group.ns for group in groups) == data.capacity_ns
    before = 0
    for group in groups:
        assert group.before_ns == before
        assert sum(leaf.ns for leaf in group.leaves) == group.ns
        for leaf in group.leaves:
            assert leaf.before_ns == before
            assert sum(ns for _, ns in leaf.by_how) == leaf.ns
            before += leaf.ns


def test_leaves_of_half_a_percent_or_less_are_summed() -> None:
    leaves = [
        LeafTime("useful", "step", 9_900),
        LeafTime("hang", "held", 51),
        LeafTime("idle", "held", 49),
    ]
    shown = waterfall(data_of(leaves))
    assert "held hang" in shown
    assert "held idle" not in shown
    assert "1 smaller" in shown


def test_what_was_not_measured_is_marked() -> None:
    leaves = [LeafTime("useful", "step", 50, "modelled"), LeafTime("hang", "held", 50, "inferred")]
    shown = waterfall(data_of(leaves))
    assert "step useful≈" in shown
    assert "░" in shown
    assert "held hang~" in shown
    assert "~ inferred" in shown
    assert "≈ modelled" in shown


def test_an_empty_window_says_what_to_type() -> None:
    shown = waterfall(data_of([], store="my store.db"))
    assert "No device time in this window yet" in shown
    assert shown.endswith("  unidle run --ranks 4 --store 'my store.db' -- python train.py\n")


def test_the_last_line_is_the_command_that_helps_most() -> None:
    track = DeviceTrack("n/0", "n", "cpu", (bar(0, 5, "useful"), bar(5, 9, "data_stall", job="job-7")))
    assert waterfall(report((track,), end_s=9)).splitlines()[-1] == "  unidle logs job-7 --store unidle.db"


def test_leaves_that_do_not_sum_to_the_capacity_are_refused() -> None:
    with pytest.raises(UnidleError, match="the leaves sum to 5 ns, the capacity is 6 ns"):
        ReportData("t", 0, "s", 0, 1, 6, (LeafTime("useful", "step", 5),))
