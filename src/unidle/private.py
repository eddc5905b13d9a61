"""Files and directories that only one user may prepare: made with exact modes, or checked and refused.

In a shared directory another user can make a name first. What a program runs or trusts is therefore owned by its own
user; no other user may write to it, and no link leads to it. Who else is trusted is a parameter:

- ``root``: root too, who may do all that the user may;
- ``at``: in the open directory ``at``, the user as whom this process writes there (a network file system may give root another number).

What another user prepared is a :class:`NotPrivate`. It names the owner and what to do. All calls also raise other OSErrors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from unidle.login import login_name

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPrivate(PermissionError):
    """Another user made it, or can change it. ``path``: of what; ``remedy``: what the user can do."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(errno.EPERM, f"{path} {problem}; {remedy}")
        self.path, self.problem, self.remedy = path, problem, remedy


def trusted(uid: int, *, root: bool, at: int | None = None) -> bool:
    """Whether files of a user may decide what this process does."""
    return uid == os.geteuid() or (root and uid == 0) or (at is not None and uid == _uid_there(uid, at))


def make_directory(path: str | os.PathLike[str], *, mended: Callable[[str], None] | None = None) -> None:
    """Make a directory with mode 0700 whatever the umask, or :func:`check_directory` the one that is there."""
    path = os.fspath(path)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        check_directory(path, mended=mended)


def check_directory(path: str | os.PathLike[str], *, mended: Callable[[str], None] | None = None) -> None:
    """:class:`NotPrivate` unless it is a directory of this user (or of root) that no other user may change.

    With ``mended``, one that the user's own group may write is closed to it if no other user is in that group.
    ``mended`` is called with a line about that.
    """
    path = os.fspath(path)
    state = os.lstat(path)
    if stat.S_ISLNK(state.st_mode):
        raise NotPrivate(
            path, f"is a symbolic link of {login_name(state.st_uid)}, which is not followed",
            "remove the link, or put the store where no other user can write",
        )  # fmt: skip
    if not stat.S_ISDIR(state.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    # no ``at``: where a network file system gives root another number, other users may have that number too
    remedy = f"put the store into a directory of your own, or have {login_name(state.st_uid)} remove it"
    _check_owner(path, state, None, root=True, remedy=remedy)
    if state.st_mode & _OTHERS_WRITE:
        if mended is not None and _close_to_own_group(path):
            mended(
                f"{path}: the mode is now {_octal(state.st_mode & ~stat.S_IWGRP)}, it was {_octal(state.st_mode)}; "
                "no other user is in its group"
            )
            return
        raise NotPrivate(
            path, f"other users may write to it (owner {login_name(state.st_uid)}, mode {_octal(state.st_mode)})",
            f"see what they put there, then `chmod go-w {path}`",
        )  # fmt: skip


def check_owned_file(path: str | os.PathLike[str]) -> None:
    """:class:`NotPrivate` unless the file, or what a link leads to, belongs to this user or to root."""
    owner = os.stat(path).st_uid
    if not trusted(owner, root=True):
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
    if stat.S_ISLNK(state.st_mode) and not trusted(state.st_uid, root=True):
        raise NotPrivate(
            path, f"is a symbolic link of {login_name(state.st_uid)}, which is not followed", "name another file"
        )  # fmt: skip
    return os.path.realpath(path)


def open_folder(
    path: str,
    *,
    at: int | None = None,
    create: bool = False,
    private: bool = False,
    root: bool = False,
    remedy: str = "",
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
            raise NotPrivate(path, f"is {what}, which is not followed", remedy or "remove it") from None
        raise
    try:
        state = os.fstat(fd)
        _check_owner(path, state, fd, root=root, remedy=remedy)
        if private and state.st_mode & 0o077:
            raise NotPrivate(
                path, f"has mode {_octal(state.st_mode)}, so other users can enter it",
                "remove it, or `chmod 700` it if no other user wrote to it",
            )  # fmt: skip
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def folder(path: str, *, at: int | None = None, create: bool = False) -> Iterator[int]:
    """:func:`open_folder`, closed at the end."""
    fd = open_folder(path, at=at, create=create)
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(name: str, at: int, flags: int = os.O_RDONLY, where: str = "", *, root: bool = False) -> int:
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
            raise NotPrivate(path, "is a link, which is not followed", "remove it") from None
        raise
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise NotPrivate(path, "is not a regular file", "remove it")
        if state.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR):
            raise NotPrivate(path, "has a second name", "remove it")
        _check_owner(path, state, at, root=root)
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


def _check_owner(path: str, state: os.stat_result, at: int | None, *, root: bool, remedy: str = "") -> None:
    """:class:`NotPrivate` unless :func:`trusted`."""
    if trusted(state.st_uid, root=root, at=at):
        return
    other, mine = login_name(state.st_uid), login_name(os.geteuid())
    raise NotPrivate(
        path, f"belongs to user {other} (uid {state.st_uid}), not to {mine} (uid {os.geteuid()})",
        remedy or "have its owner or root remove it",
    )  # fmt: skip


def _uid_there(found: int, at: int) -> int:
    """As which user this process writes in a directory: a network file system may give root another number.

    Only tried where the owner is neither this process's user nor one that it could be mistaken for.
    """
    if os.geteuid() != 0 or found == 0:
        return os.geteuid()
    name = f".{secrets.token_hex(6)}.tmp"
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
    except OSError:
        return os.geteuid()
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=at)


def _is_link(path: str, at: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _close_to_own_group(path: str) -> bool:
    """Take a directory's permission to write from the user's own group; False where another user may have written."""
    try:
        fd = os.open(path, _FOLDER)
    except OSError:
        return False
    try:
        state = os.fstat(fd)
        if state.st_uid != os.geteuid() or state.st_mode & stat.S_IWOTH or not _is_own_group(state.st_gid):
            return False
        if _has_acl(fd):  # its mask shows as the mode of the group
            return False
        os.fchmod(fd, stat.S_IMODE(state.st_mode) & ~stat.S_IWGRP)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _is_own_group(gid: int) -> bool:
    """Whether it is the group that a system makes for this user alone: its main group, of the same name, without others.

    The name counts because not all user databases can list their users.
    """
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        user.pw_gid == gid
        and group.gr_name == user.pw_name
        and set(group.gr_mem) <= {user.pw_name}
        and all(other.pw_uid == user.pw_uid for other in pwd.getpwall() if other.pw_gid == gid)
    )


def _has_acl(fd: int) -> bool:
    try:
        return any(name.startswith("system.") and "acl" in name for name in os.listxattr(fd))
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return False
        raise


def _octal(mode: int) -> str:
    return f"{stat.S_IMODE(mode):04o}"


def plain_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A plain file, open for reading. A FIFO of the same name would be waited for, and a link may lead to what its maker cannot read.

    Errors: OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(fd, "rb")
