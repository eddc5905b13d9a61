"""Checks the language of docs, help, messages, docstrings and comments against the lists in docs/words.md.

Words of the first list are errors everywhere. Words of the list for pages are errors in pages, in help, descriptions and
messages, and in the docstrings of the product. Long sentences are errors in pages, help and descriptions.

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
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "docs" / "words.md"
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**/*.md",
    "examples/**/*.md",
    "src/unidle/tune/pages/*.md",
)
CODE = ("src/**/*.py", "scripts/*.py", "examples/**/*.py", "bench/**/*.py")
NOT_READ = ("docs/words.md", "docs/benchmarks.md")  # the list itself; written by the benchmarks
HISTORY = ("CHANGELOG.md",)  # only the words that are errors everywhere
SOURCE = "src/unidle/"
NO_PROSE = ("extra", "examples", "metavar", "pattern")  # of an option or a field
PAGES_HEADING = "## Not used in pages"
MOST_WORDS = 30  # of a sentence in a page; the aim is fewer than 25
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


@cache
def rules(*, of_pages: bool = False) -> list[Rule]:
    """From the tables of the page: a cell of words in backticks, and what to write instead."""
    found = []
    section = ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.strip()
        if (section == PAGES_HEADING) != of_pages:
            continue
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


@lru_cache(maxsize=1)
def _nodes(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def texts_of_code(text: str) -> Iterator[tuple[int, str]]:
    """Strings, docstrings and comments of a Python file: (line, text)."""
    yield from strings(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if _may_have_comments(text) else ():
        if token.type == tokenize.COMMENT and OK not in token.string:
            yield token.start[0], re.sub(_QUOTED, " ", token.string)


def _may_have_comments(text: str) -> bool:
    """Whether a word of the list is behind a ``#``. Most files have none, and to take them apart is most of the work."""
    tails = (line[at:] for line in text.splitlines() if "#" in line for at in _ats(line))
    return any(rule.pattern.search(re.sub(_QUOTED, " ", tail)) for tail in tails for rule in rules())


def _ats(line: str) -> list[int]:
    return [at for at, each in enumerate(line) if each == "#"]


def texts_of_help(text: str) -> Iterator[tuple[int, str]]:
    """Help of options, and descriptions of fields: ``help=``, ``description=``, and the strings of ``Annotated[...]``."""
    lines, seen = text.splitlines(), set[int]()
    if not re.search(r"\b(Annotated|help=|description=)", text):
        return  # most files: not worth a walk
    for node in _nodes(text):
        named = isinstance(node, ast.keyword) and node.arg in ("help", "description")
        annotated = isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated"
        for found in _prose(node) if named or annotated else ():
            if id(found) not in seen and OK not in lines[(found.end_lineno or found.lineno) - 1]:
                seen.add(id(found))
                yield found.lineno, re.sub(_QUOTED, " ", str(found.value))


def _prose(node: ast.AST) -> Iterator[ast.Constant]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
        yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.keyword) and child.arg in NO_PROSE):
            yield from _prose(child)


def strings(text: str) -> Iterator[tuple[int, str]]:
    """Messages and docstrings: all strings of more than a word."""
    lines = text.splitlines()
    for node in _nodes(text):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if " " in node.value.strip() and OK not in lines[(node.end_lineno or node.lineno) - 1]:
            yield node.lineno, re.sub(_QUOTED, " ", node.value)


def sentences_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Sentences of paragraphs and lists, without code, tables and headings: (line of the paragraph, sentence).

    A run of code such as ``a``, ``b`` and ``c`` is one word; of a link only its text counts.
    """
    fenced, start, block = False, 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        fence = stripped.startswith("```")
        code = fenced or fence or line.startswith("    ")
        fenced ^= fence
        item = re.match(r"(?:[-*]|\d+\.) +", stripped)
        if block and (code or item or not stripped or stripped[0] in "#|"):
            for sentence in re.split(
                r"(?<=[.!?])[\"*)]*\s+(?=[A-Z\d*\[(\"]|[\w-]+: )", _plain(" ".join(block))
            ):
                yield start, sentence
            block = []
        if not code and stripped and stripped[0] not in "#|" and OK not in line:
            start = start if block else number
            block.append(stripped[item.end() :] if item else stripped)


def _plain(text: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(_QUOTED, "Code", text))
    return re.sub(r"Code(?:(?:,| and|, and| or|, or| to) Code)+", "Code", text)


def long_sentences(name: str, text: str) -> Iterator[Place]:
    for line, sentence in sentences_of_page(text):
        count = sum(1 for word in sentence.split() if re.search(r"\w", word))
        if count > MOST_WORDS:
            yield Place(name, line, f"{sentence[:40]}...", f"{count} words; at most {MOST_WORDS}, better 25")


def places() -> Iterator[Place]:
    everywhere, in_pages = rules(), rules(of_pages=True)
    for patterns, reader in ((PAGES, texts_of_page), (CODE, texts_of_code)):
        for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)}):
            name = path.relative_to(ROOT).as_posix()
            if name in NOT_READ:
                continue
            page = patterns is PAGES and name not in HISTORY
            whole = path.read_text(encoding="utf-8")
            for line, text in reader(whole):
                for rule in everywhere + in_pages * page:
                    for match in rule.pattern.finditer(text):
                        yield Place(name, line + text.count("\n", 0, match.start()), rule.word, rule.instead)
            if page:
                yield from long_sentences(name, whole)
            elif name.startswith(SOURCE):
                yield from interface_places(name, whole)


def interface_places(name: str, text: str) -> Iterator[Place]:
    """Places in what users read of the interface: help, descriptions, messages and docstrings."""
    for line, prose in strings(text):
        for rule in rules(of_pages=True):
            for match in rule.pattern.finditer(prose):
                yield Place(name, line + prose.count("\n", 0, match.start()), rule.word, rule.instead)
    for line, prose in texts_of_help(text):
        for place in long_sentences(name, prose):
            yield place._replace(line=line)


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
