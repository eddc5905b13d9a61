"""Checks the language of docs, help, messages, docstrings and comments against the list in docs/words.md.

    python scripts/words.py            every place that uses a word of the list; exit code 1 where there is one
    python scripts/words.py --count    how many places in each folder

Names in code are not looked at. A line that ends in ``words: ok`` is left alone: for text that quotes something.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "docs" / "words.md"
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "examples/**/*.md")
CODE = ("src/**/*.py", "scripts/*.py", "examples/**/*.py", "bench/**/*.py")
NOT_READ = ("docs/words.md", "docs/benchmarks.md")  # the list itself; written by the benchmarks
OK = "words: ok"
_QUOTED = r"``.*?``|`[^`]*`"


class Rule(NamedTuple):
    word: str
    pattern: re.Pattern[str]
    instead: str


class Place(NamedTuple):
    path: str
    line: int
    word: str
    instead: str


def rules() -> list[Rule]:
    """From the table of the page: a cell of words in backticks, and what to write instead."""
    found = []
    for line in LIST.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("| `") or len(cells) < 2:
            continue
        for word in re.findall(r"`([^`]+)`", cells[0]):
            # a phrase may be broken over two lines
            body = r"\s+".join(re.escape(part) for part in word.split())
            found.append(Rule(word, re.compile(rf"(?<![\w/.-]){body}(?![\w(=])", re.IGNORECASE), cells[1]))
    return found


def texts_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Prose of a Markdown page, without code: (line, text)."""
    fenced, block = False, list[str]()
    start = 1
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    ") and OK not in line:
            if not block:
                start = number
            block.append(re.sub(_QUOTED, " ", line))
            continue
        if block:
            yield start, "\n".join(block)
            block = []
    if block:
        yield start, "\n".join(block)


def texts_of_code(text: str) -> Iterator[tuple[int, str]]:
    """Strings, docstrings and comments of a Python file: (line, text)."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if " " in node.value.strip() and OK not in lines[(node.end_lineno or node.lineno) - 1]:
            yield node.lineno, re.sub(_QUOTED, " ", node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and OK not in token.string:
            yield token.start[0], re.sub(_QUOTED, " ", token.string)


def places() -> Iterator[Place]:
    every = rules()
    for patterns, reader in ((PAGES, texts_of_page), (CODE, texts_of_code)):
        for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)}):
            name = path.relative_to(ROOT).as_posix()
            if name in NOT_READ:
                continue
            for line, text in reader(path.read_text(encoding="utf-8")):
                for rule in every:
                    for match in rule.pattern.finditer(text):
                        yield Place(name, line + text.count("\n", 0, match.start()), rule.word, rule.instead)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", action="store_true", help="print counts for each folder alone")
    parser.add_argument("only", nargs="*", metavar="PATH", help="files or folders; default: all")
    given = parser.parse_args()
    found = [each for each in places() if not given.only or each.path.startswith(tuple(given.only))]
    if given.count:
        for folder, count in sorted(Counter(each.path.rsplit("/", 1)[0] for each in found).items()):
            print(f"{count:5}  {folder}")
    else:
        for each in found:
            print(f"{each.path}:{each.line}: '{each.word}': {each.instead}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
