"""A real file system in user space, whose server answers or does not, as the test says.

The kernel's protocol (linux/fuse.h), of which a mount that is only asked for its size needs four requests.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_GETATTR, _STATFS, _INIT, _INTERRUPT, _FORGET, _BATCH_FORGET = 3, 17, 26, 36, 2, 42
_IN = struct.Struct("=IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT = struct.Struct("=IiQ")
_MNT_DETACH = 2


class StubbornMount:
    """Mounted at ``place``; :meth:`stall` lets it read requests and answer none, :meth:`answer` all again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self._libc.mount(b"server:/data", os.fsencode(place), b"fuse.stubborn", 0, options) != 0:
            number = ctypes.get_errno()
            os.close(self._fuse)
            raise OSError(number, os.strerror(number))
        self._free = threading.Event()
        self._free.set()
        self.held = threading.Event()  # a request has been read and is not answered
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        try:
            os.statvfs(place)  # after this the kernel and the server know each other
        except OSError:
            self.close()
            raise

    def stall(self) -> None:
        self.held.clear()
        self._free.clear()

    def answer(self) -> None:
        self._free.set()

    def die(self) -> None:
        """The server ends: every request fails from now on, also those that wait."""
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
            self._free.set()
            self._thread.join(60)

    def close(self) -> None:
        self.die()
        self._libc.umount2(os.fsencode(self.place), _MNT_DETACH)

    def _serve(self) -> None:
        ready = select.poll()
        ready.register(self._fuse, select.POLLIN)
        ready.register(self._ends, 0)
        while self._end >= 0:
            if any(fd == self._ends for fd, _ in ready.poll()):
                break
            try:
                data = os.read(self._fuse, 1 << 20)
            except (InterruptedError, FileNotFoundError, BlockingIOError):
                continue  # who asked has gone
            except OSError:
                break  # unmounted
            _, opcode, unique, *_ = _IN.unpack_from(data)
            if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            if not self._free.is_set():
                self.held.set()
                self._free.wait()
            if self._end < 0:
                break
            body, failed = _answer_to(opcode)
            with suppress(OSError):
                os.write(self._fuse, _OUT.pack(_OUT.size + len(body), -failed, unique) + body)
        os.close(self._fuse)
        os.close(self._ends)


def _answer_to(opcode: int) -> tuple[bytes, int]:
    if opcode == _INIT:  # version 7.31; what is 0 is the kernel's choice
        return struct.pack("=IIIIHHIIHHII6I", 7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0, 0, *[0] * 6), 0
    if opcode == _STATFS:
        return struct.pack("=QQQQQIIII6I", 1000, 500, 500, 100, 50, 4096, 255, 4096, 0, *[0] * 6), 0
    if opcode == _GETATTR:
        attributes = struct.pack("=QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
        return struct.pack("=QII", 0, 0, 0) + attributes, 0
    return b"", errno.ENOSYS


@contextmanager
def stubborn(place: Path) -> Iterator[StubbornMount]:
    """A mount at ``place``, which is made; gone at the end."""
    place.mkdir(exist_ok=True)
    mount = StubbornMount(place)
    try:
        yield mount
    finally:
        mount.close()
