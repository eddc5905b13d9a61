"""Lines of text fit the terminal."""

from __future__ import annotations

import pytest

from unidle.cli.common import say, say_whole, warn
from unidle.cli.tables import folded


@pytest.fixture(autouse=True)
def _of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_long_line_is_folded_between_words_with_an_indent(capsys: pytest.CaptureFixture[str]) -> None:
    say("  what would help: " + "free device " * 12)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1 and all(len(line) <= 80 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def test_a_command_in_backticks_stays_in_one_line() -> None:
    assert folded("start one with `unidle up --store /a/b`", 20) == [
        "start one with",
        "  `unidle up --store /a/b`",
    ]


def test_blanks_that_align_columns_stay() -> None:
    assert folded("capacity    12 Mbit/s one two", 25, 12) == ["capacity    12 Mbit/s one", "            two"]


def test_commands_to_copy_quoted_output_and_errors_in_logs_stay_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "word " * 30
    say(f"  | {long}")
    say(f"  next: {long}")
    say_whole(long)
    warn(long)
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3 and len(shown.err.splitlines()) == 1
