"""``unidle tune fix``: edits of what the check finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.cli.common import JsonOption, print_json, say, say_whole, warn
from unidle.cli.option_set import with_options
from unidle.cli.tune_words import (
    ExcludeOption,
    IgnoreOption,
    PathsArgument,
    SelectOption,
    check_paths_exist,
    tune_settings,
)
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.tune.fixes.changes import PlannedChanges, TuneChange


@dataclass(frozen=True, slots=True)
class TuneFixOptions:
    """Options of the edits, in the order of the help."""

    # fmt: off
    diff: Annotated[bool, typer.Option("--diff", help="Print a patch for each edit, and change nothing.")] = False
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the edits: in a git repository each as a commit, on a new branch.")
    ] = False
    unsafe: Annotated[
        bool, typer.Option("--unsafe-fixes", help="Also edits that change the order of samples, precision or what is logged.")
    ] = False
    branch: Annotated[
        str, typer.Option("--branch", metavar="NAME", help="Name of the new branch.")
    ] = "unidle-tune"
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Change files of a repository that has other changes, without commits.")
    ] = False
    select: SelectOption = None
    ignore: IgnoreOption = None
    exclude: ExcludeOption = None
    as_json: JsonOption = False
    # fmt: on


@with_options(options=TuneFixOptions)
def fix(paths: PathsArgument, options: TuneFixOptions) -> None:
    """Edit slow code, one change at a time. Comments and format stay.

    Exit codes: 0 done, or nothing to edit; 2 bad input, or changes that are not committed.
    """
    from unidle.tune.fixes.changes import planned_changes
    from unidle.tune.fixes.rewrite import need_libcst

    if options.diff == options.apply:
        raise BadInput(
            "needs one of both", field="--diff, --apply", remedy="--diff prints patches, --apply makes them"
        )
    check_paths_exist(paths)
    need_libcst()
    settings = tune_settings(paths, options.select, options.ignore, options.exclude)
    root = _root(paths)
    if options.apply:
        _apply(root, paths, options)
        return
    planned = planned_changes(root, paths, settings)
    chosen = [one for one in planned.changes if one.is_safe or options.unsafe]
    _warn(planned)
    _show_diffs(root, chosen, options)
    left = len(planned.changes) - len(chosen)
    if not options.as_json:
        more = f"; --unsafe-fixes adds {left}" if left else ""
        warn(f"{counted(len(chosen), 'edit')} in {counted(len({one.file for one in chosen}), 'file')}{more}")


def _root(paths: Sequence[str]) -> Path:
    """The repository of the first path, else the directory that all paths are in."""
    from unidle.tune.git_tree import GitTree

    tree = GitTree.of(Path(paths[0]))
    if tree is not None and all(Path(one).resolve().is_relative_to(tree.top.resolve()) for one in paths):
        return tree.top
    here = Path.cwd()
    if all(Path(one).resolve().is_relative_to(here) for one in paths):
        return here
    if len(paths) > 1:
        raise BadInput(
            "are not in one directory", field="PATH", value=" ".join(paths), remedy="run it for each"
        )
    only = Path(paths[0]).resolve()
    return only if only.is_dir() else only.parent


def _show_diffs(root: Path, chosen: Sequence[TuneChange], options: TuneFixOptions) -> None:
    from unidle.tune.fixes.apply import diffs

    texts = diffs(root, chosen)
    if options.as_json:
        print_json([_row(one) | {"patch": text} for one, text in zip(chosen, texts, strict=True)])
        return
    for one, text in zip(chosen, texts, strict=True):
        say_whole(f"# {one.file}:{one.line} {one.code} {one.why}{_class(one)}")
        say_whole(text.rstrip("\n"))


def _apply(root: Path, paths: Sequence[str], options: TuneFixOptions) -> None:
    from unidle.tune.fixes.apply import apply_changes

    settings = tune_settings(paths, options.select, options.ignore, options.exclude)
    made = apply_changes(
        root, paths, settings, unsafe=options.unsafe, branch=options.branch, allow_dirty=options.allow_dirty
    )
    if options.as_json:
        print_json([_row(one.change) | {"commit": one.commit} for one in made])
        return
    for one in made:
        say_whole(
            f"{one.commit[:10] or 'edited'} {one.change.file}:{one.change.line} {one.change.code} {one.change.why}{_class(one.change)}"
        )
    where = f" on branch {options.branch}" if made and made[0].commit else ""
    say(f"{counted(len(made), 'edit')}{where}" if made else "nothing to edit")


def _row(one: TuneChange) -> dict[str, object]:
    return {"code": one.code, "file": one.file, "line": one.line, "class": one.kind, "why": one.why}


def _class(one: TuneChange) -> str:
    return "" if one.is_safe else f" (changes {one.kind})"


def _warn(planned: PlannedChanges) -> None:
    for skipped in planned.skipped:
        warn(f"{skipped.file}{f':{skipped.line}' if skipped.line else ''} {skipped.why}; left alone")
    for text in planned.unwritten:
        warn(f"{text}; left alone")
