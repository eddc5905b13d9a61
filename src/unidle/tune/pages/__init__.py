"""The pages of the rules: Markdown, one file for each code, also published as `docs/tune`."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def page_of(code: str) -> str:
    """The page of a rule. Errors: OSError for a code without one."""
    return (_FOLDER / f"{code}.md").read_text(encoding="utf-8")


def example(code: str, heading: str) -> str:
    """The first code block below a heading of a page, such as ``Slow``; empty without one."""
    section = page_of(code).partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    return found[1] if found else ""
