"""Colours: one per group, readable on both papers."""

from __future__ import annotations

from itertools import pairwise

from unidle.ledger.taxonomy import GROUP_COLOURS, GROUPS
from unidle.report.palette import ansi_256, contrast, ink_on, leaf_colour, leaf_colours, rgb


def test_every_leaf_has_a_colour_and_the_first_has_its_groups_own() -> None:
    colours = leaf_colours()
    assert set(colours) == {leaf for leaves in GROUPS.values() for leaf in leaves}
    for group, leaves in GROUPS.items():
        assert colours[next(iter(leaves))] == GROUP_COLOURS[group]


def test_leaves_of_a_group_differ() -> None:
    for leaves in GROUPS.values():
        assert len({leaf_colours()[leaf] for leaf in leaves}) == len(leaves)
        for a, b in pairwise(leaves):
            assert contrast(rgb(leaf_colours()[a]), rgb(leaf_colours()[b])) > 1.1


def test_labels_on_bars_meet_aa() -> None:
    for colour in leaf_colours().values():
        assert contrast(rgb(ink_on(rgb(colour))), rgb(colour)) >= 4.5


def test_groups_stay_apart_on_a_terminal() -> None:
    assert len({ansi_256(colour) for colour in GROUP_COLOURS.values()}) == len(GROUP_COLOURS)


def test_a_leaf_of_another_taxonomy_has_its_groups_colour() -> None:
    assert leaf_colour("new_cause", "held") == GROUP_COLOURS["held"]
    assert leaf_colour("new_cause", "new_group") == GROUP_COLOURS["unseen"]
