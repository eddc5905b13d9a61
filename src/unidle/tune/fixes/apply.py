"""Changes carried out in a tree: one diff, or one commit for each on a branch of its own, or files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unidle.errors import BadInput
from unidle.tune.edits import FileChange, apply_edits, patch, planned
from unidle.tune.fixes.changes import TuneChange, next_change
from unidle.tune.git_tree import GitTree
from unidle.tune.settings import TuneSettings


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that was made, and its commit, if there is a repository."""

    change: TuneChange
    commit: str


def diffs(root: Path, changes: Sequence[TuneChange]) -> list[str]:
    """A unified diff for each change, against the tree as it is."""
    return [patch(planned(root, one.edits)) for one in changes]


def apply_changes(
    root: Path, paths: Sequence[str], settings: TuneSettings, *, unsafe: bool, branch: str, allow_dirty: bool
) -> list[AppliedChange]:
    """Make all changes, one after the other; each is planned in the tree that the one before left.

    In a repository each becomes a commit on a new branch, which stays checked out. Without one, files are changed in place.
    With an error, files and branch are as before. Errors: BadInput on a dirty tree, CannotRun by git, OSError.
    """
    tree = GitTree.of(root)
    if tree is not None and not allow_dirty and (dirty := tree.dirty()):
        raise BadInput(
            "has changes that are not committed", field="PATH", value=dirty[0],
            remedy="commit or stash them, or pass --allow-dirty",
        )  # fmt: skip
    first = next_change(root, paths, settings, [], unsafe)
    if first is None:
        return []
    commits = tree is not None and not (allow_dirty and tree.dirty())
    before: dict[str, FileChange] = {}
    made: list[AppliedChange] = []
    start = tree.branch() if tree is not None else ""
    if tree is not None and commits:
        tree.start_branch(branch)
    try:
        _make_all(root, paths, settings, unsafe, tree if commits else None, before, made)
    except BaseException:
        _restore(root, before)
        if tree is not None and commits:
            tree.back_to(start)
            tree.delete_branch(branch)
        raise
    return made


def _make_all(
    root: Path, paths: Sequence[str], settings: TuneSettings, unsafe: bool,
    tree: GitTree | None, before: dict[str, FileChange], made: list[AppliedChange],
) -> None:  # fmt: skip
    done: list[tuple[str, str]] = []
    while (change := next_change(root, paths, settings, done, unsafe)) is not None:
        done.append((change.file, change.edits[0].new))
        for one in apply_edits(root, change.edits):
            before.setdefault(one.file, one)
        commit = ""
        if tree is not None:
            files = [str((root / edit.file).resolve()) for edit in change.edits]
            commit = tree.commit(files, f"{change.code}: {change.why}\n\n{change.file}:{change.line}")
        made.append(AppliedChange(change, commit))


def _restore(root: Path, before: dict[str, FileChange]) -> None:
    for one in before.values():
        (root / one.file).write_bytes(one.before.encode(one.encoding))
