"""CONTRIBUTING.md: every path and name that it sends its reader to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "unidle"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
SUFFIXES = (".py", ".c", ".md", ".yaml", ".toml", ".txt", ".lock")
TABLE = PAGE.partition("### Where do I change X?")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and "`" in line
]


def quoted(text: str) -> list[str]:
    """Words in backticks, one by one."""
    return [word for code in re.findall(r"`([^`]+)`", text) for word in code.split()]


def is_path(word: str) -> bool:
    """Not one of the machine, of an address, or with a placeholder such as NAME."""
    if re.search(r"^/|[=:$]|\b[A-Z]{4,}\b", word):
        return False
    return "/" in word or word.endswith(SUFFIXES)


def is_there(path: str) -> bool:
    return any(any(place.glob(path.strip("/"))) for place in (ROOT, SOURCE))


def test_every_path_of_the_page_is_there() -> None:
    linked = re.findall(r"\]\(([^):#]+)[)#]", PAGE)
    named = [word for word in quoted(PAGE) if is_path(word)]
    assert len(named) > 80
    assert [path for path in (*linked, *named) if not is_there(path)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_change_of_the_table_has_files_names_in_them_and_a_test(row: list[str]) -> None:
    _, files, tests, count = row
    assert 1 <= int(count) <= 4
    for step in files.split(";"):
        paths = [word for word in quoted(step) if is_path(word)]
        texts = [(SOURCE / path).read_text() for path in paths]
        missing = [
            word for word in quoted(step) if not is_path(word) and not any(word in text for text in texts)
        ]
        assert missing == [], step
    for path in quoted(tests):
        assert "def test_" in (ROOT / path).read_text(), path
