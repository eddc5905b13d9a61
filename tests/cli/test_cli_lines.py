"""Lines of ranks, and what a terminal is given of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.api.lines import LINE_BYTES, RankLines
from unidle.cli.lines import for_terminal
from unidle.cli.profile_live import safe


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_lines_are_those_of_the_whole_however_it_is_cut(chunks: list[bytes]) -> None:
    lines = RankLines(b"[1] ")
    found = [line for chunk in chunks for line in lines.feed(chunk)] + lines.rest()
    whole = b"".join(chunks).split(b"\n")
    assert found == [b"[1] " + line for line in (whole if whole[-1] else whole[:-1])]


def test_a_line_without_an_end_is_shown_in_pieces_of_bounded_size() -> None:
    lines = RankLines()
    found = [line for _ in range(40) for line in lines.feed(b"x" * 100_000)]
    assert max(map(len, found)) <= LINE_BYTES + 100_000
    assert sum(map(len, found + lines.rest())) == 4_000_000


def test_a_progress_bar_of_hours_is_not_kept() -> None:
    lines = RankLines(bars=True)
    for k in range(10_000):
        assert lines.feed(b"\r%d %%" % k) == []
    assert (lines.open_line(), lines.rest()) == (b"9999 %", [b"\r9999 %"])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain \xc3\xa9", "plain é"),
        (b"10 %\r20 %\r30 %", "30 %"),
        (b"windows\r", "windows"),
        (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        (b"a\x1b[2Jb\x1b[10;1Hc\x1b[Kd", "abcd"),
        (b"\x1b]0;title\x07text\x1b]8;;x\x1b\\link", "textlink"),
        (b"\x1b(0lines\x1bc", "lines"),
        (b"nul\0bell\x07", "nul\ufffdbell\ufffd"),
        (b"\xff\xfe\x9b2J", "\ufffd\ufffd\ufffd2J"),
        ("\x9b2J".encode(), "\ufffd2J"),
        (b"tab\tstays\x1b", "tab\tstays\ufffd"),
        (b"10%\x08\x08\x08", "10%"),
    ],
)
def test_a_terminal_gets_colours_and_nothing_else_that_drives_it(line: bytes, shown: str) -> None:
    assert for_terminal(line) == shown


@given(st.binary(max_size=60))
def test_no_byte_of_a_job_moves_the_cursor(line: bytes) -> None:
    shown = re.sub(r"\x1b\[[0-9;:]*m", "", for_terminal(line.replace(b"\n", b"")))
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", shown)


@pytest.mark.parametrize(
    "name",
    [
        "\x1b[2J",
        "\x1b[2J\x1b[H\nm",
        "\x1b]52;c;ZXZpbA==\x07m",
        "\x1b[\x1b]0;title\x07m",
        "a\rb",
        "\x9b2J",
        "\x1b",
        "\x1b[31",
    ],
)
def test_of_names_in_a_profile_nothing_but_colours_reaches_the_terminal(name: str) -> None:
    shown = safe(f"\x1b[1;31m{name}\x1b[0m in f")
    assert shown.startswith("\x1b[1;31m") and shown.endswith("\x1b[0m in f")
    inner = shown.removeprefix("\x1b[1;31m").removesuffix("\x1b[0m in f")
    assert not any(c in inner for c in "\x1b\x07\x9b\r")
