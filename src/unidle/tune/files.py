"""Which files are checked, and how they are read: directories, encodings, notebooks, limits of size."""

from __future__ import annotations

import io
import os
import stat
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from unidle.tune.notebook import Cells, read_notebook

MOST_BYTES: Final = 2_000_000
ALWAYS_EXCLUDED: Final = (
    ".*", "__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist", "_build", "*.egg-info", "buck-out",
)  # fmt: skip
SUFFIXES: Final = (".py", ".pyi", ".ipynb")


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was not checked, and why. ``named``: it is on the command line."""

    file: str
    why: str
    named: bool
    line: int = 0


@dataclass(frozen=True, slots=True)
class SourceText:
    """The text of a file; ``cells`` of a notebook."""

    file: str
    text: str
    named: bool
    cells: Cells | None = None


def found_files(paths: Sequence[str], exclude: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """The files below paths, in order, each once; and whether it was named itself. Links to directories are not followed."""
    seen: set[tuple[int, int]] = set()
    for given in paths:
        top = Path(given)
        if not top.is_dir():
            yield top, True
            continue
        for folder, folders, names in os.walk(top, onerror=None, followlinks=False):
            folders[:] = sorted(name for name in folders if not _excluded(Path(folder, name), top, exclude))
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in SUFFIXES and not _excluded(path, top, exclude) and _is_new(path, seen):
                    yield path, False


def _excluded(path: Path, top: Path, exclude: Sequence[str]) -> bool:
    """As in a .gitignore: a pattern without a slash is for names, one with a slash for paths below the start."""
    below = path.relative_to(top).as_posix()
    for pattern in (*ALWAYS_EXCLUDED, *exclude):
        plain = pattern.strip("/")
        if (
            fnmatch(path.name, plain)
            if "/" not in plain
            else (fnmatch(below, plain) or fnmatch(path.as_posix(), plain))
        ):
            return True
    return False


def _is_new(path: Path, seen: set[tuple[int, int]]) -> bool:
    try:
        info = path.stat()
    except OSError:
        return True  # reading it shows why
    key = (info.st_dev, info.st_ino)
    if key in seen:
        return False
    seen.add(key)
    return True


def read_source(path: Path, named: bool) -> SourceText | SkippedFile:
    """The text of a file, or why there is none."""
    name = shown(path)

    def skipped(why: str) -> SkippedFile:
        return SkippedFile(name, why, named)

    if path.suffix not in SUFFIXES:
        return skipped(f"is not Python: the name ends in none of {', '.join(SUFFIXES)}")
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            return skipped("is not a plain file")
        if info.st_size > MOST_BYTES:
            return skipped(
                f"has {info.st_size / 1e6:,.1f} MB, over the limit of {MOST_BYTES / 1e6:.0f} MB; it is taken for generated code"
            )
        raw = path.read_bytes()
    except OSError as error:
        return skipped(f"cannot be read: {error.strerror or error}")
    if path.suffix == ".ipynb":
        cells = read_notebook(raw)
        return skipped(cells) if isinstance(cells, str) else SourceText(name, cells.text, named, cells)
    if b"\0" in raw:
        return skipped("is not Python: it has zero bytes")
    plain = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(plain).readline)
        return SourceText(name, plain.decode(encoding), named)
    except (SyntaxError, LookupError) as error:
        return skipped(f"has an unknown encoding: {error}")
    except UnicodeDecodeError as error:
        return skipped(
            f"is not {error.encoding}: byte {error.start} is invalid; declare the encoding in the first line"
        )


def shown(path: Path) -> str:
    """A path as findings have it: below the current directory without it."""
    text = os.path.normpath(path)
    if path.is_absolute():
        below = os.path.relpath(text)
        text = text if below.startswith("..") else below
    return text.replace(os.sep, "/")
