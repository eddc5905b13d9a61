"""Files that are there whole or not at all: written under another name next to their own, then renamed."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # importing typing would slow the supervisor's start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, Final

PRIVATE: Final = 0o600
"""The mode of files with what jobs are, do and print."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def replaced(
    path: str | os.PathLike[str],
    mode: int = PRIVATE,
    *,
    at: int | None = None,
    umask: bool = False,
    durable: bool = False,
) -> Iterator[BinaryIO]:
    """A stream whose content appears under ``path`` when the block ends; a link there is replaced, not followed.

    ``at``: the descriptor of the directory that ``path`` starts from. The mode is exact, or, with ``umask``, less what
    that takes. ``durable``: the content is on the disk before it appears; its name is after a sync of the directory.
    The name of the stream is that of the draft, which cannot be guessed. If the block fails, nothing stays of it.
    """
    path = os.fspath(path)
    stream = _begun(path, mode, at, umask=umask)
    try:
        with stream:
            yield stream
            _finish(stream, durable=durable)
        os.replace(stream.name, path, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        _remove(stream.name, at)
        raise


def draft(path: str, data: bytes, at: int) -> str:
    """A durable file next to ``path`` with this content and mode 0600, and its name; the caller gives it another one."""
    stream = _begun(path, PRIVATE, at, umask=False)
    try:
        with stream:
            stream.write(data)
            _finish(stream, durable=True)
    except BaseException:
        _remove(stream.name, at)
        raise
    return stream.name


def _begun(path: str, mode: int, at: int | None, *, umask: bool) -> BinaryIO:
    folder, name = os.path.split(path)
    draft_path = os.path.join(folder, f".{name[:64]}.{os.urandom(6).hex()}.tmp")
    fd = os.open(draft_path, _NEW, mode, dir_fd=at)
    if not umask:
        os.fchmod(fd, mode)
    return open(draft_path, "wb", opener=lambda _path, _flags: fd)


def _finish(stream: BinaryIO, *, durable: bool) -> None:
    stream.flush()
    if durable:
        os.fsync(stream.fileno())


def _remove(path: str, at: int | None) -> None:
    with suppress(OSError):
        os.unlink(path, dir_fd=at)
