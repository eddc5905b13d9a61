"""Keys and values of a prompt that was prefilled elsewhere, as a file in memory (in tmpfs if the host has it)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Final

_SHARED: Final = Path("/dev/shm")  # noqa: S108 - private directories below it
_PREFIX: Final = "unidle-fill-"


class HandoffPlace:
    """A directory of one front door. What a killed door left is removed by the next one: it no longer holds the lock."""

    def __init__(self) -> None:
        root = _SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir())
        for old in root.glob(f"{_PREFIX}*"):
            _remove_if_left(old)
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        self._lock = _locked(self.directory)

    def close(self) -> None:
        """Remove it with all that was not taken."""
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _locked(directory: Path) -> IO[bytes] | None:
    """The lock of a directory, or None while its owner lives."""
    lock = open(directory / "lock", "ab")  # noqa: SIM115 - held until close
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _remove_if_left(directory: Path) -> None:
    with contextlib.suppress(OSError):
        if directory.stat().st_uid != os.getuid() or not (directory / "lock").exists():
            return
        if (lock := _locked(directory)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
            lock.close()
