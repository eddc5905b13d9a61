"""Where copies are: below one directory for each user, which no other user may enter, and how files in it are opened."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from typing import Final

from unidle import private
from unidle.atomic import draft
from unidle.checkpoint.layout import INNER

GATE: Final = ".start"
_ID_MOST_BYTES: Final = 64
_REMEDY: Final = (
    "have its owner or root remove it, or set UNIDLE_HOLD_DIR to a directory that only you can write"
)


def hold_base() -> str:
    """The directory of all users' copies on this machine."""
    given = os.environ.get("UNIDLE_HOLD_DIR")
    return given or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


def hold_directory(storage: str, node: str, identity: str) -> str:
    """Where a node's copies for one checkpoint directory are: in memory, the same for each restart of the job.

    ``identity`` is that of :func:`directory_id`: a deleted directory starts without copies in memory too.
    """
    key = hashlib.sha256(f"{os.path.realpath(storage)}\0{identity}\0{node}".encode()).hexdigest()[:16]
    return os.path.join(hold_base(), _own_name(), key)


def _own_name() -> str:
    return f"unidle-hold-{os.geteuid()}"


def open_hold(hold: str, *, create: bool = False) -> int:
    """A descriptor of a directory of copies; it and the user's base directory are checked. Raises OSError."""
    parent, name = os.path.split(hold)
    up = _open_parent(parent, create)
    try:
        return private.open_folder(
            hold if up is None else name, at=up, create=create, private=True, remedy=_REMEDY
        )
    finally:
        if up is not None:
            os.close(up)


@contextlib.contextmanager
def held(hold: str, *, create: bool = False) -> Iterator[int]:
    """:func:`open_hold`, closed at the end."""
    fd = open_hold(hold, create=create)
    try:
        yield fd
    finally:
        os.close(fd)


def open_copy(name: str, at: int, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a copy in a directory of :func:`open_hold`. Raises OSError."""
    return private.open_file(name, at, flags)


def _open_parent(parent: str, create: bool) -> int | None:
    """The base directory of this user, checked; None for a directory that the caller chose (``--hold``)."""
    if os.path.basename(parent) != _own_name():
        return None
    return private.open_folder(parent, create=create, private=True, remedy=_REMEDY)


def gate(hold: str) -> int:
    """The lock without which no holder of ``hold`` begins, or ends; as a descriptor. Raises OSError."""
    parent, name = os.path.split(hold)
    while True:
        up = _open_parent(parent, create=True)
        if up is None:
            up = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fd = private.open_file(name + GATE, up, os.O_RDWR | os.O_CREAT, where=parent)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if is_same(fd, name + GATE, up):
                return fd
            os.close(fd)  # who had it before has removed it
        except FileNotFoundError:
            continue  # who had it before has removed the base directory too
        finally:
            os.close(up)


def clear(hold: str) -> None:
    """Remove a directory of copies with its gate, and the user's base directory where nothing else is in it."""
    shutil.rmtree(hold, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(f"{hold}{GATE}")
    if os.path.basename(parent := os.path.dirname(hold)) == _own_name():
        with contextlib.suppress(OSError):
            os.rmdir(parent)


def is_same(fd: int, path: str, at: int | None = None) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        there, mine = os.stat(path, dir_fd=at, follow_symlinks=False), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


# ---- the inner directory of a checkpoint directory


@contextlib.contextmanager
def inner(storage: str, *below: str, create: bool = False) -> Iterator[int]:
    """A descriptor of ``.unidle`` in a checkpoint directory, or of a directory in it: this user's, no links. Raises OSError."""
    if create:
        os.makedirs(storage, exist_ok=True)
    path = os.path.join(storage, INNER)
    fd = private.open_folder(path, create=create)
    try:
        for name in below:
            inside = private.open_folder(name, at=fd, create=create)
            os.close(fd)
            fd = inside
        yield fd
    finally:
        os.close(fd)


def directory_id(storage: str) -> str:
    """The id of a checkpoint directory: another one of the same name has a different id. Made at the first call. Raises OSError."""
    with inner(storage, create=True) as fd:
        try:
            return _id_in(fd)
        except FileNotFoundError:
            pass
        draft_name = draft("id", os.urandom(8).hex().encode(), fd)
        try:
            os.link(draft_name, "id", src_dir_fd=fd, dst_dir_fd=fd)  # whole, or not there, at any moment
        except FileExistsError:
            pass
        except OSError:
            os.replace(draft_name, "id", src_dir_fd=fd, dst_dir_fd=fd)  # a file system without hard links
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft_name, dir_fd=fd)
        return _id_in(fd)


def known_id(storage: str) -> str:
    """The same where it was made before. Raises OSError."""
    with inner(storage) as fd:
        return _id_in(fd)


def _id_in(fd: int) -> str:
    found = private.read("id", fd, _ID_MOST_BYTES).decode("ascii", errors="replace")
    if not found.isalnum():
        raise OSError(errno.EINVAL, f"{INNER}/id is not an id of unidle; remove it")
    return found
