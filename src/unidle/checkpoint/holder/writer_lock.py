"""One job at a time writes to a checkpoint directory, also across nodes: the holder of its rank 0 has a lock there."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Final

from unidle import private
from unidle.checkpoint.holder import attempts, hold_paths
from unidle.checkpoint.holder.attempts import SavingAttempt
from unidle.checkpoint.layout import INNER

TAKE_OVER_S: Final = 10.0  # for ranks of the last attempt to be gone
OLDER_S: Final = 2.0  # where they are of an earlier attempt of the same job, which is over for its controller
_LOOK_S: Final = 0.1


class WriterLock:
    """Of one directory. What the lock cannot prevent, because who has it is stopped, :mod:`attempts` does."""

    def __init__(self, storage: str) -> None:
        self._storage = storage
        self._path = os.path.join(storage, INNER, "lock")
        self._fd = -1
        self._has = False

    def take(self, owner: str, attempt: SavingAttempt) -> str:
        """Take it for rank 0 of an attempt; empty, or why not.

        An earlier attempt of the same job, which does not let go, is passed over: its lock is taken once it is free.
        """
        if self._has and hold_paths.is_same(self._fd, self._path):
            return ""
        self.release()
        try:
            return self._wait(owner, attempt)
        except OSError as error:
            return f"the directory cannot be written: {error.strerror}"

    def retry(self) -> None:
        """Take a lock that an earlier attempt did not let go, if it is free by now."""
        if self._fd >= 0 and not self._has:
            self._has = self._try()

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self._has = -1, False

    def _wait(self, owner: str, attempt: SavingAttempt) -> str:
        with hold_paths.inner(self._storage, create=True) as inner:
            self._fd = private.open_file("lock", inner, os.O_RDWR | os.O_CREAT, os.path.dirname(self._path))
        begin_s = time.monotonic()
        while not self._try():
            waited_s = time.monotonic() - begin_s
            if waited_s > OLDER_S and attempts.is_superseding(self._storage, attempt):
                return ""
            if waited_s > TAKE_OVER_S:
                other = os.pread(self._fd, 400, 0).decode(errors="replace").strip()
                self.release()
                return f"{other or 'another job'} writes to this directory"
            time.sleep(_LOOK_S)
        self._has = True
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{owner}\n".encode(), 0)
        return ""

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
