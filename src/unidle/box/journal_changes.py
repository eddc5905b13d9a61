"""Wakes the box when a rank's journal grows, by inotify. Where that is not to be had, the box looks often instead."""

from __future__ import annotations

import ctypes
import os
import struct

_MODIFY, _DELETE_SELF, _MOVE_SELF, _IGNORED = 0x2, 0x400, 0x800, 0x8000
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")  # watch, what, cookie, length of the name that follows


class FileChanges:
    """Which of some files were written to. ``fd`` is below 0 where the machine offers no inotify."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = (
            int(self._libc.inotify_init1(_NONBLOCK_CLOEXEC)) if hasattr(self._libc, "inotify_init1") else -1
        )
        self._watches: dict[int, str] = {}
        self._known: set[str] = set()

    def follow(self, path: str) -> bool:
        """Whether changes of the file are seen from now on; False while there is no such file."""
        if path in self._known:
            return True
        if self.fd < 0:
            return False
        what = _MODIFY | _DELETE_SELF | _MOVE_SELF
        number = int(self._libc.inotify_add_watch(self.fd, os.fsencode(path), what))
        if number < 0:
            return False
        self._watches[number] = path
        self._known.add(path)
        return True

    def leave(self, path: str) -> None:
        """Follow a file no more."""
        for number in [n for n, each in self._watches.items() if each == path]:
            self._libc.inotify_rm_watch(self.fd, number)
            self._forget(number)

    def drain(self) -> None:
        """Take all events; a file that was replaced is followed again by the next :meth:`follow`."""
        while True:
            try:
                data = os.read(self.fd, 16384)
            except OSError:
                return
            at = 0
            while at + _EVENT.size <= len(data):
                number, what, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                if what & (_DELETE_SELF | _MOVE_SELF | _IGNORED):
                    self._forget(number)

    def _forget(self, number: int) -> None:
        self._known.discard(self._watches.pop(number, ""))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
