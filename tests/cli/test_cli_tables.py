"""Tables fit the terminal, and nothing of them is lost."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from unidle.cli.tables import table

WORDS = st.text("abc /日é", max_size=30)
NUMBERS = st.integers(0, 10**9).map(str)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    kinds = draw(st.lists(st.sampled_from([WORDS, NUMBERS]), min_size=1, max_size=14))
    rows = draw(st.lists(st.tuples(*kinds).map(list), min_size=1, max_size=4))
    return [f"x {k}" for k in range(len(kinds))], rows


def wide(text: str) -> int:
    return len(text) + text.count("日")


@given(tables(), st.integers(40, 120))
def test_no_line_is_wider_than_the_terminal_and_no_character_is_lost(
    drawn: tuple[list[str], list[list[str]]], width: int
) -> None:
    header, rows = drawn
    lines = table(header, rows, width=width)
    assert max(map(wide, lines)) <= width
    printed = "".join(lines)
    for character in "abc日é":
        assert printed.count(character) >= sum(cell.count(character) for cell in chain(*rows))


def test_a_table_that_fits_is_as_wide_as_its_cells() -> None:
    lines = table(["job", "steps"], [["a", "7"], ["long-name", "12"]], width=80)
    assert lines == ["job        steps", "a              7", "long-name     12"]


def test_a_long_reason_moves_below_its_row_and_a_short_one_stays() -> None:
    rows = [["job-1", "failed", "x " * 60], ["job-2", "succeeded", "exited 0"]]
    lines = table(["job", "state", "reason"], rows, width=40)
    assert lines[1] == "job-1  failed"
    assert all(line.startswith("    x") for line in lines[2:-1])
    assert lines[-1] == "job-2  succeeded  exited 0"


def test_many_columns_of_numbers_follow_in_a_second_table_that_names_its_rows() -> None:
    header = ["schedule", *(f"figure{k}" for k in range(10))]
    lines = table(header, [["gpipe", *["123456"] * 10]], width=40)
    assert (
        sum(line.startswith("gpipe") for line in lines)
        == sum(line.startswith("schedule") for line in lines)
        > 1
    )
    assert sum(line.count("123456") for line in lines) == 10


def test_states_have_colours_only_where_they_are_asked_for() -> None:
    rows = [["a", "failed"], ["b", "unheard-of"]]
    assert "\x1b" not in "".join(table(["job", "state"], rows, width=80))
    coloured = table(["job", "state"], rows, width=80, coloured=True)
    assert coloured[1] == "a    \x1b[31mfailed\x1b[0m" and "\x1b" not in coloured[2]
