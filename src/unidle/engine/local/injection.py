"""The library that the CUDA driver loads into a process, and the variables that make it do so.

The native part (``unidle_scope``) carries the library as bytes (``native/inject/kernels.c``); the driver needs a file. It is
written once for each version of the library, into the user's cache directory.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from unidle.atomic import replaced
from unidle.errors import CannotRun

LIBRARY: Final = "CUDA_INJECTION64_PATH"  # of the driver: what it loads in cuInit
DIRECTORY: Final = "UNIDLE_KERNELS_DIR"  # of the library: where its files are
FOLDER: Final = "kernels"  # in a rank's directory
_NAME: Final = "libunidle_kernels"


def variables(directory: str) -> dict[str, str]:
    """What a process has in its environment for its kernels to be recorded in ``directory``. Errors: CannotRun."""
    return {LIBRARY: library(), DIRECTORY: directory}


def of_rank(directory: str, present: Mapping[str, str]) -> dict[str, str]:
    """The same for a rank, below its directory. It never hinders a start.

    Another tool's library stays; without the native part the directory alone is named, from which a look finds the reason.
    """
    if present.get(LIBRARY):
        return {DIRECTORY: f"{directory}/{FOLDER}"}
    try:
        return variables(f"{directory}/{FOLDER}")
    except CannotRun:
        return {DIRECTORY: f"{directory}/{FOLDER}"}


def library() -> str:
    """The path of the library. Errors: CannotRun without the native part, or where it cannot be written."""
    content = _content()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(os.path.abspath(base), "unidle")
    path = os.path.join(folder, f"{_NAME}-{hashlib.sha256(content).hexdigest()[:16]}.so")
    try:
        if not _is(path, content):
            os.makedirs(base, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            with replaced(path) as file:
                file.write(content)
    except OSError as error:
        raise CannotRun(
            f"the library cannot be written: {error.strerror}", field="--kernels", value=path,
            remedy="set XDG_CACHE_HOME to a directory of yours",
        ) from None  # fmt: skip
    return path


def _content() -> bytes:
    try:
        import unidle_scope

        return unidle_scope.KERNELS_LIBRARY
    except (ImportError, AttributeError):
        raise CannotRun(
            "the library is in the profiler's native part, which is missing or older", field="--kernels",
            remedy="install the wheel unidle_scope of this version (docs: Install), or `make setup` in a checkout",
        ) from None  # fmt: skip


def _is(path: str, content: bytes) -> bool:
    """Whether the file is the library, and no other user can write to it. A program will run it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(fd, "rb") as file:
        seen = os.fstat(fd)
        own = seen.st_uid == os.geteuid() and not seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return own and stat.S_ISREG(seen.st_mode) and file.read(len(content) + 1) == content
