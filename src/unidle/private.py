"""Files and directories that only one user may prepare: made with exact modes, or checked and refused.

In a shared directory another user can make a name first. What a program runs or trusts is therefore owned by its own
user, or by root, who may do all that the user may; no other user may write to it, and no link leads to it.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from unidle.login import login_name

PRIVATE: Final = 0o600
"""The mode of files with what jobs are, do and print."""
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(PermissionError):
    """Another user made it, or can change it. ``path``: of what; ``remedy``: what the user can do."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(errno.EPERM, problem, path)
        self.path, self.problem, self.remedy = path, problem, remedy


def trusted(uid: int) -> bool:
    """Whether files of a user may decide what this process does."""
    return uid in (os.geteuid(), 0)


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory with mode 0700 whatever the umask, or check the one that is there.

    Errors: :class:`NotPrivate`; other OSError where it cannot be made.
    """
    path = os.fspath(path)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        check_directory(path)


def check_directory(path: str | os.PathLike[str]) -> None:
    """:class:`NotPrivate` unless it is a directory of this user (or of root) that no other user may change."""
    path = os.fspath(path)
    state = os.lstat(path)
    if stat.S_ISLNK(state.st_mode):
        raise NotPrivate(
            path, f"is a symbolic link of {login_name(state.st_uid)}, which is not followed",
            "remove the link, or put the store where no other user can write",
        )  # fmt: skip
    if not stat.S_ISDIR(state.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not trusted(state.st_uid):
        raise NotPrivate(
            path, f"belongs to {login_name(state.st_uid)}, not to {login_name(os.geteuid())}",
            f"put the store into a directory of your own, or have {login_name(state.st_uid)} remove it",
        )  # fmt: skip
    if state.st_mode & _OTHERS_WRITE:
        raise NotPrivate(
            path, f"other users may write to it (owner {login_name(state.st_uid)}, mode {_octal(state.st_mode)})",
            f"see what they put there, then `chmod go-w {path}`",
        )  # fmt: skip


def check_owned_file(path: str | os.PathLike[str]) -> None:
    """:class:`NotPrivate` unless the file, or what a link leads to, belongs to this user or to root."""
    owner = os.stat(path).st_uid
    if not trusted(owner):
        raise NotPrivate(
            os.fspath(path), f"belongs to {login_name(owner)}, so {login_name(owner)} decides what it runs",
            f"run this as {login_name(owner)}, or use a store of your own",
        )  # fmt: skip


def target_of(path: str) -> str:
    """Where a link at ``path`` leads, if this user or root made the link; else :class:`NotPrivate`."""
    try:
        state = os.lstat(path)
    except FileNotFoundError:
        return os.path.realpath(path)
    if stat.S_ISLNK(state.st_mode) and not trusted(state.st_uid):
        raise NotPrivate(
            path, f"is a symbolic link of {login_name(state.st_uid)}, which is not followed", "name another file"
        )  # fmt: skip
    return os.path.realpath(path)


@contextmanager
def replaced(path: str | os.PathLike[str], mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A stream whose content appears under ``path`` when the block ends, with exactly this mode.

    The draft next to it has a name that cannot be guessed. A link at ``path`` is replaced, not followed.
    """
    path = os.fspath(path)
    fd, draft = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:64]}-", dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(fd, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(fd, mode)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _octal(mode: int) -> str:
    return f"{stat.S_IMODE(mode):04o}"
