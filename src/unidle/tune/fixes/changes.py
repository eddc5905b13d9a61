"""From findings to changes: each finding that has an edit becomes one change of one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.check import is_left_out, linked_sources
from unidle.tune.edits import Edit, edit_between
from unidle.tune.files import SkippedFile, SourceText
from unidle.tune.fixes.operations import FixKind, FixPlan
from unidle.tune.fixes.registry import fixes, plan_for
from unidle.tune.fixes.rewrite import NoPlace, rewritten
from unidle.tune.registry import CodeFinding, findings, places, rules
from unidle.tune.settings import TuneSettings


@dataclass(frozen=True, slots=True)
class TuneChange:
    """The edit of one finding. ``edits`` are read against the tree as it is before it."""

    code: str
    file: str
    line: int
    kind: FixKind
    why: str
    edits: tuple[Edit, ...]

    @property
    def is_safe(self) -> bool:
        """Whether it changes nothing on purpose."""
        return self.kind == "same"


@dataclass(frozen=True, slots=True)
class PlannedChanges:
    """Changes in the order of files and lines, what could not be read, and findings whose edit could not be written."""

    changes: tuple[TuneChange, ...]
    skipped: tuple[SkippedFile, ...]
    unwritten: tuple[str, ...]


def planned_changes(root: Path, paths: Sequence[str], settings: TuneSettings) -> PlannedChanges:
    """The changes of files below paths; names of files are relative to ``root``. Notebooks have none. Errors: BadInput without libcst."""
    sources, skipped, _ = linked_sources(paths, settings)
    found: list[TuneChange] = []
    unwritten: list[str] = []
    for source, facts in sources:
        if source.cells is not None:
            continue
        for finding, plan in planned_in(source, facts, settings):
            try:
                after = rewritten(facts, plan)
                edit = edit_between(
                    _below(root, facts.path), facts.text, after, f"{finding.code}: {plan.why}"
                )
            except NoPlace as error:
                unwritten.append(f"{finding.file}:{finding.line} {finding.code}: {error.problem}")
                continue
            if edit is not None:
                kind = fixes()[finding.code].kind
                found.append(TuneChange(finding.code, edit.file, finding.line, kind, plan.why, (edit,)))
    return PlannedChanges(tuple(_distinct(found)), tuple(skipped), tuple(unwritten))


def planned_in(
    source: SourceText, facts: SourceFacts, settings: TuneSettings
) -> Iterator[tuple[CodeFinding, FixPlan]]:
    """The findings of a file that have an edit."""
    chosen = [rules()[code] for code in settings.chosen(rules()) if code in fixes()]
    pairs = zip(findings(facts, chosen), places(facts, chosen), strict=True)
    for finding, (rule, node) in pairs:
        plan = plan_for(facts, rule.code, node) if finding.fixable else None
        if plan is not None and not is_left_out(finding, source, facts, settings):
            yield finding, plan


def _distinct(changes: Sequence[TuneChange]) -> Iterator[TuneChange]:
    """Each edit once: two findings may have the same one."""
    seen: set[tuple[Edit, ...]] = set()
    for one in sorted(changes, key=lambda change: (change.file, change.line, change.code)):
        plain = tuple(Edit(edit.file, edit.old, edit.new) for edit in one.edits)
        if plain not in seen:
            seen.add(plain)
            yield one


def _below(root: Path, path: str) -> str:
    return Path(path).resolve().relative_to(root.resolve()).as_posix()


def next_change(
    root: Path, paths: Sequence[str], settings: TuneSettings, done: Sequence[tuple[str, str]], unsafe: bool
) -> TuneChange | None:
    """The first change of the tree as it is now that is not among those done, by file and by what it writes."""
    for one in planned_changes(root, paths, settings).changes:
        if (one.is_safe or unsafe) and (one.file, one.edits[0].new) not in done:
            return one
    return None
