"""Cheats that are refused, and honest changes that are not: the static comparison of `unidle tune`, without a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from _table import Row, main
from _tune_cheats import CHEATS, HONEST, Change
from unidle.tune.cheats import CheatRefusal, cheats
from unidle.tune.edits import FileChange


def refusals(change: Change) -> list[CheatRefusal]:
    """What is refused of it. Each old text occurs once."""
    text = change.program
    for old, new in change.edits:
        assert text.count(old) == 1, (change.what, old, text.count(old))
        text = text.replace(old, new)
    return cheats([FileChange("train.py", change.program, text)])


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Misses and false refusals, of those that the rules were written with and of those held out."""
    for held_out in (False, True):
        word = "held out" if held_out else "development"
        bad = [one for one in CHEATS if one.held_out == held_out]
        good = [one for one in HONEST if one.held_out == held_out]
        missed = [one for one in bad if not refusals(one)]
        false = [one for one in good if refusals(one)]
        if arguments.show:
            show(missed, false)
        yield row(f"cheats accepted, {word}", missed, bad)
        yield row(f"honest changes refused, {word}", false, good)


def row(what: str, wrong: Sequence[Change], of: Sequence[Change]) -> Row:
    return Row(
        what,
        "changes",
        len(wrong),
        goal="0",
        holds=not wrong,
        how=f"measured here, {len(of)} changes, static comparison only",
    )


def show(missed: Sequence[Change], false: Sequence[Change]) -> None:
    for one in missed:
        print("missed", one.what, one.edits, file=sys.stderr)
    for one in false:
        print("false", one.what, [each.text() for each in refusals(one)], file=sys.stderr)


if __name__ == "__main__":
    main(
        "tune_cheats",
        rows,
        lambda parser: parser.add_argument("--show", action="store_true", help="print what is wrong"),
    )
