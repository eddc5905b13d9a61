"""A change of a program as a list of edits, and how it is applied to a copy of the tree.

An edit replaces one text of one file. All edits of a change are read against the files as they are before it: each ``old`` occurs exactly
once there, and no two edits overlap, so their order does not matter. Nothing is written unless all of them can be applied.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import stat
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from unidle.errors import BadInput

MOST_BYTES: Final = 2_000_000
"""Of a file that is edited, before and after."""
_NEW_LINE: Final = re.compile(r"\r\n|\r|\n")
_UNSAFE_NAMES: Final = frozenset({"", ".", "..", ".git", ".hg", ".svn"})


class EditRefused(BadInput):
    """An edit that cannot be applied as it is: no such file, a text that is missing or ambiguous, a path out of the tree."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``old`` by ``new`` in ``file``, a path in the tree with slashes. ``why`` is for the person who reads the patch."""

    file: str
    old: str
    new: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after a change; lines end as in the file. ``encoding`` is that of both."""

    file: str
    before: str
    after: str
    encoding: str = "utf-8"


def planned(tree: Path, edits: Sequence[Edit]) -> tuple[FileChange, ...]:
    """What edits change below ``tree``, by file; nothing is written. Errors: :class:`EditRefused`."""
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(_path(edit.file), []).append(edit)
    changes = []
    for file, several in by_file.items():
        before, encoding = _read(tree, file)
        after = _edited(file, before, several)
        _check_result(file, after, encoding)
        changes.append(FileChange(file, before, after, encoding))
    return tuple(changes)


def apply_edits(tree: Path, edits: Sequence[Edit]) -> tuple[FileChange, ...]:
    """Apply all edits below ``tree``, or none; what changed. Errors: :class:`EditRefused`, OSError."""
    changes = planned(tree, edits)
    for change in changes:
        _write(tree, change)
    return changes


def differences(before: Path, after: Path, files: Iterable[str]) -> tuple[FileChange, ...]:
    """What differs between two trees in these files, for :func:`patch`. Errors: :class:`EditRefused`."""
    found = []
    for file in sorted(files):
        (old, encoding), (new, _) = _read(before, file), _read(after, file)
        if old != new:
            found.append(FileChange(file, old, new, encoding))
    return tuple(found)


def patch(changes: Iterable[FileChange]) -> str:
    """A unified diff that ``git apply`` and ``patch -p1`` accept."""
    parts: list[str] = []
    for one in changes:
        lines = difflib.unified_diff(_lines(one.before), _lines(one.after), f"a/{one.file}", f"b/{one.file}")
        parts += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        ]
    return "".join(parts)


def edit_between(file: str, before: str, after: str, why: str = "") -> Edit | None:
    """One edit of whole lines that makes ``after`` of ``before``, with as many lines around as make it unique; None where they are equal."""
    if before == after:
        return None
    old, new = _lines(before), _lines(after)
    first = next(
        (at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other),
        min(len(old), len(new)),
    )
    behind = 0
    while behind < min(len(old), len(new)) - first and old[-1 - behind] == new[-1 - behind]:
        behind += 1
    while True:
        text = "".join(old[first : len(old) - behind])
        if text and _count(before, text) == 1:
            return Edit(file, text, "".join(new[first : len(new) - behind]), why)
        if first == 0 and behind == 0:  # an empty file
            raise EditRefused("is empty: there is no text to replace", field=file)
        first, behind = max(0, first - 1), max(0, behind - 1)


# ---- checks


def _path(file: str) -> str:
    parts = PurePosixPath(file).parts
    if not file or "\0" in file or "\\" in file or file.startswith("/"):
        raise EditRefused("is no path in the tree", field="file", value=file, remedy="such as src/train.py")
    if any(part in _UNSAFE_NAMES for part in parts):
        raise EditRefused(
            "is not in the tree", field="file", value=file, remedy="name a file below the directory"
        )
    return "/".join(parts)


def _edited(file: str, before: str, edits: Sequence[Edit]) -> str:
    ending = "\r\n" if "\r\n" in before else "\n"
    spans = []
    for edit in edits:
        if not edit.old:
            raise EditRefused("is empty", field=f"{file} old", remedy="give the text that is replaced")
        old, new = (_NEW_LINE.sub(lambda _: ending, text) for text in (edit.old, edit.new))
        if old == new:
            raise EditRefused("changes nothing", field=f"{file} old", value=edit.old)
        count = _count(before, old)
        if count != 1:
            raise EditRefused(
                f"occurs {count} times" if count else "does not occur in the file", field=f"{file} old", value=edit.old,
                remedy="give text that occurs exactly once" + (", with more lines around it" if count else ""),
            )  # fmt: skip
        start = before.index(old)
        spans.append((start, start + len(old), new))
    spans.sort()
    after, at = [], 0
    for start, end, new in spans:
        if start < at:
            raise EditRefused(
                "overlaps another edit of the change", field=f"{file} old", value=before[start:end]
            )
        after += [before[at:start], new]
        at = end
    return "".join([*after, before[at:]])


def _count(text: str, part: str) -> int:
    """How often a part occurs, overlapping ones included; at most 2 are counted exactly."""
    count, at = 0, text.find(part)
    while at >= 0:
        count += 1
        at = text.find(part, at + 1)
    return count


def _check_result(file: str, after: str, encoding: str) -> None:
    try:
        size = len(after.encode(encoding))
    except UnicodeEncodeError as error:
        raise EditRefused(f"has characters that {encoding} lacks", field=f"{file} new") from error
    if size > MOST_BYTES:
        raise EditRefused(f"is over the limit of {MOST_BYTES} bytes after the change", field=file, value=size)
    if file.endswith(".py"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(after)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            raise EditRefused(
                f"is not valid Python after the change: {getattr(error, 'msg', None) or error}",
                field=f"{file}:{line}" if line else file,
            ) from error


# ---- files


@contextmanager
def _folder(tree: Path, file: str) -> Iterator[tuple[int, str]]:
    """The open directory of a file, and the file's name. No link is followed below the tree."""
    *folders, name = file.split("/")
    opened = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened, name
    finally:
        os.close(opened)


def _read(tree: Path, file: str) -> tuple[str, str]:
    try:
        with _folder(tree, file) as (folder, name):
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with open(opened, "rb") as stream:
                kind = os.fstat(opened)
                if not stat.S_ISREG(kind.st_mode):
                    raise EditRefused("is no regular file", field="file", value=file)
                if kind.st_size > MOST_BYTES:
                    raise EditRefused(
                        f"is over the limit of {MOST_BYTES} bytes", field=file, value=kind.st_size
                    )
                raw = stream.read()
    except OSError as error:
        raise EditRefused(
            "is no file in the tree, or is behind a link", field="file", value=file,
            remedy="edit files that exist; links are not followed",
        ) from error  # fmt: skip
    encoding = "utf-8"
    try:
        if file.endswith(".py"):
            encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding), encoding
    except (SyntaxError, LookupError, UnicodeDecodeError) as error:
        raise EditRefused(f"is not text: {error}", field="file", value=file) from error


def _write(tree: Path, change: FileChange) -> None:
    """Replace the file as a whole: one that has another name elsewhere keeps its content there."""
    with _folder(tree, change.file) as (folder, name):
        mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        new = f".{name[:100]}.{os.getpid()}.new"
        opened = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            with open(opened, "wb") as stream:
                stream.write(change.after.encode(change.encoding))
                os.fchmod(opened, mode)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(new, dir_fd=folder)
            raise


def _lines(text: str) -> list[str]:
    """Lines with their ends; only LF ends a line, as in ``git``."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
