"""Changes that win by measuring, computing or keeping less, instead of by being faster: refused, with rule and place."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.cheats.places import SHIELDED_NAMES, is_test
from unidle.tune.cheats.rules import refused_in
from unidle.tune.cheats.words import CheatRefusal
from unidle.tune.edits import FileChange

__all__ = ["CheatRefusal", "RunFacts", "cheats", "run_cheats"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a measured run did, and the unchanged program did in the same place; all are counts but the set of files."""

    steps: int
    samples: int
    threads: int
    processes: int
    files: frozenset[str] = frozenset()


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


def run_cheats(before: RunFacts, after: RunFacts) -> list[CheatRefusal]:
    """Why a measured run is refused next to one of the unchanged program."""
    found = []
    if after.steps != before.steps:
        found.append(CheatRefusal("steps", "", 0, f"takes {after.steps} steps instead of {before.steps}"))
    if after.samples != before.samples:
        found.append(
            CheatRefusal("data", "", 0, f"reads {after.samples} samples instead of {before.samples}")
        )
    if after.threads > before.threads:
        found.append(
            CheatRefusal(
                "deferred", "", 0, f"has {after.threads} threads at its end instead of {before.threads}"
            )
        )
    if after.processes > before.processes:
        found.append(
            CheatRefusal(
                "deferred", "", 0, f"leaves {after.processes} processes instead of {before.processes}"
            )
        )
    missing = before.files - after.files
    if missing:
        found.append(CheatRefusal("work", "", 0, f"does not write {', '.join(sorted(missing)[:3])}"))
    return found


def _facts(file: str, text: str) -> SourceFacts:
    return SourceFacts(file, text, ast.parse(text))
