"""Directories and files that have to be this user's own: opened without following links, with owner and mode checked.

Another user of the machine may put anything in ``/dev/shm``, in ``/tmp`` or in a shared checkpoint directory first.
All calls raise OSError; one of another owner is a PermissionError that names the owner and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Final

from unidle.login import login_name

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(
    path: str, *, at: int | None = None, create: bool = False, private: bool = False, remedy: str = ""
) -> int:
    """A descriptor of a directory of this user; with ``private`` no other one may enter it.

    ``at``: the descriptor of the directory in which ``path`` is; ``create``: make it, with mode 0700, where it is missing.
    """
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=at)
    try:
        fd = os.open(path, _FOLDER, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            what = "a link" if _is_link(path, at) else "not a directory"
            raise PermissionError(
                errno.EPERM, f"{path} is {what}, which is not followed; {remedy or 'remove it'}"
            ) from None
        raise
    try:
        state = os.fstat(fd)
        _check_owner(path, state, fd, remedy)
        if private and state.st_mode & 0o077:
            raise PermissionError(
                errno.EPERM,
                f"{path} has mode {state.st_mode & 0o7777:04o}, so other users can enter it; remove it, or `chmod 700` it if no other user wrote to it",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def folder(path: str, *, at: int | None = None, create: bool = False) -> Iterator[int]:
    """:func:`open_folder`, closed at the end."""
    fd = open_folder(path, at=at, create=create)
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(name: str, at: int, flags: int = os.O_RDONLY, where: str = "") -> int:
    """A descriptor of a regular file of this user in the directory ``at``; with ``O_CREAT`` its mode is 0600.

    ``where`` is how messages name that directory. A link, and for writing also a hard one, is refused before anything is changed.
    """
    path = os.path.join(where, name)
    try:
        fd = os.open(
            name,
            (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY,
            0o600,
            dir_fd=at,
        )
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PermissionError(
                errno.EPERM, f"{path} is a link, which is not followed; remove it"
            ) from None
        raise
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise PermissionError(errno.EPERM, f"{path} is not a regular file; remove it")
        if state.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EPERM, f"{path} has a second name; remove it")
        _check_owner(path, state, at, "")
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(name: str, at: int, most_bytes: int) -> bytes:
    """The content of a file of :func:`open_file`; OSError (EFBIG) where it has more than ``most_bytes``."""
    with os.fdopen(open_file(name, at), "rb", buffering=0) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
    return data


def draft(name: str, at: int, data: bytes) -> str:
    """Write ``data`` to a new file with mode 0600 whose name cannot have been taken before; its name."""
    draft_name = f"{name}.{secrets.token_hex(6)}.tmp"
    fd = os.open(
        draft_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at
    )
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft_name, dir_fd=at)
        raise
    return draft_name


def write(name: str, at: int, data: bytes) -> None:
    """Replace a file whole: a link of that name is replaced, not followed."""
    draft_name = draft(name, at, data)
    try:
        os.replace(draft_name, name, src_dir_fd=at, dst_dir_fd=at)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft_name, dir_fd=at)
        raise


def _check_owner(path: str, state: os.stat_result, folder: int, remedy: str) -> None:
    if state.st_uid in (os.geteuid(), _uid_there(state.st_uid, folder)):
        return
    other, mine = login_name(state.st_uid), login_name(os.geteuid())
    raise PermissionError(
        errno.EPERM,
        f"{path} belongs to user {other} (uid {state.st_uid}), not to {mine} (uid {os.geteuid()}); "
        + (remedy or "have its owner or root remove it"),
    )


def _uid_there(found: int, folder: int) -> int:
    """As which user this process writes in a directory: a network file system may give root another number.

    Only tried where the owner is neither this process's user nor one that it could be mistaken for.
    """
    if os.geteuid() != 0 or found == 0:
        return os.geteuid()
    name = f".{secrets.token_hex(6)}.tmp"
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:
        return os.geteuid()
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _is_link(path: str, at: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return False
