"""Copies of a tree for trials, and a hash of its files."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from unidle.errors import CannotRun

LEFT_OUT: Final = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})  # fmt: skip
MOST_BYTES: Final = 4 << 30


def _files(tree: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(tree, followlinks=False):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted([*names, *links]))


def tree_hash(tree: Path) -> str:
    """A SHA-256 of the names, the links and the contents of all files."""
    found = hashlib.sha256()
    for path in _files(tree):
        found.update(os.fsencode(path.relative_to(tree)) + b"\0")
        kind = path.lstat().st_mode
        if stat.S_ISLNK(kind):
            found.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(kind):
            with path.open("rb") as stream:
                found.update(hashlib.file_digest(stream, "sha256").digest())
        found.update(b"\0")
    return found.hexdigest()


def copy_tree(tree: Path, to: Path) -> None:
    """Copy regular files and links. Errors: CannotRun for more than 4 GiB, OSError."""
    size = sum(path.lstat().st_size for path in _files(tree))
    if size > MOST_BYTES:
        raise CannotRun(
            "is too large to be copied", field="directory", value=f"{size / 2**30:.1f} GiB",
            remedy="run it in the directory of the program, with its data elsewhere",
        )  # fmt: skip

    def special(folder: str, names: list[str]) -> set[str]:
        kinds = {name: Path(folder, name).lstat().st_mode for name in names}
        return {
            name for name, kind in kinds.items()
            if name in LEFT_OUT or not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind))
        }  # fmt: skip

    shutil.copytree(tree, to, symlinks=True, ignore=special)
