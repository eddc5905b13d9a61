"""Notebooks: the code of all cells as one text, and the cell of each line."""

from __future__ import annotations

import ast
import json
import re
import warnings
from dataclasses import dataclass
from typing import Any

_KEPT_MAGIC = re.compile(r"^%%(?:time|timeit|capture|prun)\b")
_MAGIC = re.compile(r"^\s*(?:[%!?]|\w[\w.]*\?+\s*$|(?P<name>[\w, ]+?)\s*=\s*[%!])")


@dataclass(frozen=True, slots=True)
class Cells:
    """``places``: for each line of the text its cell and its line there, both from 1. ``broken``: cells with syntax errors."""

    text: str
    places: tuple[tuple[int, int], ...]
    broken: tuple[tuple[int, str], ...]


def read_notebook(raw: bytes) -> Cells | str:
    """The code cells of a notebook, or why there are none. Lines with magic commands and broken cells are left empty."""
    try:
        notebook = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return f"is no notebook: {str(error).splitlines()[0]}"
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        return "is no notebook: it has no list of cells (version 4 of the format)"
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    broken: list[tuple[int, str]] = []
    number = 0
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        number += 1
        code = _without_magic(_source(cell))
        if problem := _syntax_error("\n".join(code)):
            broken.append((number, problem))
            code = [""] * len(code)
        lines += code
        places += [(number, line) for line in range(1, len(code) + 1)]
    return Cells("\n".join(lines), tuple(places), tuple(broken))


def _source(cell: dict[str, Any]) -> list[str]:
    source = cell.get("source", "")
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    return re.split(r"\r\n|\r|\n", text)


def _without_magic(lines: list[str]) -> list[str]:
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not _KEPT_MAGIC.match(first):
        return [""] * len(lines)
    return [_plain(line) if _MAGIC.match(line) else line for line in lines]


def _plain(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}pass"


def _syntax_error(text: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return str(getattr(error, "msg", "") or error or "is nested too deeply").splitlines()[0]
    return ""
