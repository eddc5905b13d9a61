"""Changes that win by measuring, computing or keeping less, instead of by being faster: refused, with rule and place."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import PurePosixPath

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.cheats.places import SHIELDED_NAMES, is_test
from unidle.tune.cheats.rules import refused_in
from unidle.tune.cheats.words import CheatRefusal
from unidle.tune.edits import FileChange

__all__ = ["CheatRefusal", "cheats"]


def cheats(changes: Sequence[FileChange]) -> list[CheatRefusal]:
    """Why a change is refused, in order of file and line; nothing where it is not. It is compared as a syntax tree, and not run."""
    found: list[CheatRefusal] = []
    for change in changes:
        name = PurePosixPath(change.file).name
        if is_test(change.file):
            found.append(CheatRefusal("tests", change.file, 1, "edits a test"))
        elif name in SHIELDED_NAMES:
            found.append(CheatRefusal("harness", change.file, 1, "edits a file that Python runs on its own"))
        elif not change.file.endswith(".py"):
            found.append(
                CheatRefusal(
                    "data", change.file, 1, "edits a file that is no Python: data, settings or a build"
                )
            )
        else:
            found += refused_in(
                change.file, _facts(change.file, change.before), _facts(change.file, change.after)
            )
    return sorted(set(found), key=lambda one: (one.file, one.line, one.rule))


def _facts(file: str, text: str) -> SourceFacts:
    return SourceFacts(file, text, ast.parse(text))
