"""Comments that leave a line alone: ``# noqa``, ``# noqa: UDL101``; for a file, ``# unidle: noqa``."""

from __future__ import annotations

import re
from typing import Final

from unidle.tune.registry import CodeFinding

_LINE: Final = re.compile(
    r"#[^#]*?\bnoqa\b(?P<codes>:\s?(?P<list>[A-Z][A-Z]*[0-9]+(?:[\s,]+[A-Z][A-Z]*[0-9]+)*))?", re.IGNORECASE
)
_FILE: Final = re.compile(
    r"^\s*#\s*unidle:\s*noqa(?::\s*(?P<list>[A-Z0-9, ]+))?\s*$", re.IGNORECASE | re.MULTILINE
)


def is_silenced(finding: CodeFinding, lines: list[str]) -> bool:
    """Whether the first or the last line of a finding has such a comment. Lines are those of the text, from 0."""
    for number in {finding.line, finding.end_line}:
        line = lines[number - 1] if number <= len(lines) else ""
        if "noqa" not in line.lower():
            continue
        found = _LINE.search(line)
        if found and (not found["codes"] or finding.code in _codes(found["list"])):
            return True
    return False


def silenced_in_file(text: str) -> frozenset[str] | None:
    """The codes that a file leaves alone; None: all of them."""
    codes: set[str] = set()
    for found in _FILE.finditer(text) if "unidle:" in text else ():
        if not found["list"]:
            return None
        codes |= _codes(found["list"])
    return frozenset(codes)


def _codes(text: str) -> set[str]:
    return {one.upper() for one in re.split(r"[\s,]+", text) if one}
