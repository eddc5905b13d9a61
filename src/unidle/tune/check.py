"""The check: files to findings."""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.files import SkippedFile, SourceText, found_files, read_source
from unidle.tune.noqa import is_silenced, silenced_in_file
from unidle.tune.project import Project
from unidle.tune.registry import CodeFinding, TuneRule, findings, rules
from unidle.tune.settings import TuneSettings

_LIBRARIES = (
    "torch", "transformers", "lightning", "accelerate", "numpy", "pandas", "datasets", "fastapi", "flask", "sentence_transformers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Findings in order, files that were not checked, and the number of files that were."""

    findings: tuple[CodeFinding, ...]
    skipped: tuple[SkippedFile, ...]
    files: int


def check_paths(paths: Sequence[str], settings: TuneSettings) -> CheckResult:
    """Check files and directories. A file that cannot be read or parsed is skipped, with the reason."""
    collects = gc.isenabled()
    gc.disable()  # trees are kept until the end, and have no circles: a third of the time
    try:
        return _checked(paths, settings)
    finally:
        if collects:
            gc.enable()


def _checked(paths: Sequence[str], settings: TuneSettings) -> CheckResult:
    chosen = [rules()[code] for code in settings.chosen(rules())]
    sources, skipped, count = linked_sources(paths, settings)
    found: list[CodeFinding] = []
    for source, facts in sources:
        try:
            found += _kept(source, facts, chosen, settings)
        except RecursionError:
            skipped.append(SkippedFile(source.file, "is nested too deeply", source.named))
    return CheckResult(tuple(sorted(found)), tuple(skipped), count)


def linked_sources(
    paths: Sequence[str], settings: TuneSettings
) -> tuple[list[tuple[SourceText, SourceFacts]], list[SkippedFile], int]:
    """The files of a run with their facts, those that cannot be read, and the number of files that can."""
    sources: list[tuple[SourceText, SourceFacts]] = []
    skipped: list[SkippedFile] = []
    count = 0
    for path, named in found_files(paths, settings.exclude):
        source = read_source(path, named)
        if isinstance(source, SkippedFile):
            skipped.append(source)
            continue
        facts = facts_of(source, settings.hot_functions)
        if isinstance(facts, SkippedFile):
            skipped.append(facts)
            continue
        count += 1
        for cell, error in source.cells.broken if source.cells else ():
            skipped.append(SkippedFile(f"{source.file}:cell {cell}", f"is not valid Python: {error}", False))
        if facts is not None:
            sources.append((source, facts))
    Project(facts for _, facts in sources).link()
    return sources, skipped, count


def check_text(text: str, file: str = "code.py", settings: TuneSettings | None = None) -> list[CodeFinding]:
    """The findings of one text. Errors: SyntaxError."""
    settings = settings or TuneSettings()
    source = SourceText(file, text, True)
    facts = facts_of(source, settings.hot_functions)
    if isinstance(facts, SkippedFile):
        raise SyntaxError(facts.why)  # noqa: TRY004
    chosen = [rules()[code] for code in settings.chosen(rules())]
    return sorted(_kept(source, facts, chosen, settings)) if facts is not None else []


def facts_of(source: SourceText, hot_names: tuple[str, ...] = ()) -> SourceFacts | SkippedFile | None:
    """The facts of a text; None where it uses no library that a rule is for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes: not ours to report
            tree = ast.parse(source.text)
        if not any(name in source.text for name in _LIBRARIES):
            return None
        return SourceFacts(source.file, source.text, tree, hot_names)
    except SyntaxError as error:
        return SkippedFile(source.file, f"is not valid Python: {error.msg}", source.named, error.lineno or 0)
    except ValueError as error:
        return SkippedFile(source.file, f"is not valid Python: {error}", source.named)
    except (RecursionError, MemoryError):
        return SkippedFile(source.file, "is nested too deeply", source.named)


def _kept(
    source: SourceText, facts: SourceFacts, chosen: Sequence[TuneRule], settings: TuneSettings
) -> list[CodeFinding]:
    """Findings that no comment and no setting leaves out, with the cells of a notebook."""
    if silenced_in_file(facts.text) is None:
        return []
    kept = []
    for one in findings(facts, chosen):
        if is_left_out(one, source, facts, settings):
            continue
        kept.append(_in_cell(one, source) if source.cells else one)
    return kept


def is_left_out(one: CodeFinding, source: SourceText, facts: SourceFacts, settings: TuneSettings) -> bool:
    """Whether a comment or a setting leaves a finding out."""
    silenced = silenced_in_file(facts.text)
    return (
        silenced is None
        or one.code in silenced
        or settings.ignored_in(source.file, one.code)
        or is_silenced(one, facts.lines)
    )


def _in_cell(one: CodeFinding, source: SourceText) -> CodeFinding:
    assert source.cells is not None
    places = source.cells.places
    cell, line = places[one.line - 1]
    end_cell, end_line = places[min(one.end_line, len(places)) - 1]
    return replace(
        one,
        file=f"{source.file}:cell {cell}",
        cell=cell,
        line=line,
        end_line=end_line if end_cell == cell else line,
    )
