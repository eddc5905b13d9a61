"""The kernel's state of another process's TCP sockets: each is copied for a moment, and the copy is queried.

This costs some microseconds a socket. Listing the connections of a network namespace takes 20 ms. It is allowed
where ``pidfd_getfd`` is: for root, and for a user's own processes if the user may trace them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from typing import Final, NamedTuple

Address = tuple[str, int]

_GETFD: Final = 438  # the same on all architectures
_TCP_INFO_BYTES: Final = 192
_ESTABLISHED: Final = 1
_INFO: Final = struct.Struct("=B x B 21x I 40x I 48x Q 16x I 20x Q Q")
# tcpi_state, _retransmits, _unacked, _rtt, _bytes_acked, _notsent_bytes, _busy_time, _rwnd_limited (linux/tcp.h)
_MAPPED: Final = "::ffff:"
_LIST_EVERY: Final = 5  # readings
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if platform.system() == "Linux" else None


class Tcp(NamedTuple):
    """An established connection. ``busy_us`` counts time in which something that was sent was not acknowledged yet
    and the other end had room for it; ``retransmits`` how often what is oldest of it was sent again.
    """

    here: Address
    there: Address
    queued: bool
    retransmits: int
    rtt_us: int
    acked_bytes: int
    busy_us: int


class NotAllowed(Exception):
    """Sockets of the process cannot be copied."""


def inodes_of(pid: int) -> dict[int, int]:
    """Sockets that a process has open: inode -> a descriptor of it."""
    found: dict[int, int] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found[int(target[8:-1])] = int(name)
    return found


class Sockets:
    """The established TCP connections of one process, from reading to reading.

    What is open is listed only now and then, and what is no connection is asked once: a reading is four system calls
    a connection.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process = -1
        self._known: dict[int, tuple[int, Address, Address]] = {}  # inode: its descriptor, and both ends
        self._other: dict[int, int] = {}  # sockets that are never TCP connections: inode -> descriptor
        self._unlisted = 0  # readings
        self._info = ctypes.create_string_buffer(_TCP_INFO_BYTES)
        self._size = ctypes.c_uint32()

    def read(self) -> dict[int, Tcp]:
        """The connections by inode. Errors: :class:`NotAllowed`."""
        if not self._known or self._unlisted == _LIST_EVERY:
            return self._listed()
        self._unlisted += 1
        found: dict[int, Tcp] = {}
        for inode, (number, here, there) in self._known.items():
            copy = self._copy(number, inode)
            if copy < 0:  # it was closed
                return self._listed()
            try:
                tcp = self._told(copy, here, there)
            finally:
                os.close(copy)
            if tcp is not None:
                found[inode] = tcp
        return found

    def close(self) -> None:
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def _listed(self) -> dict[int, Tcp]:
        descriptors = inodes_of(self._pid)
        self._unlisted, self._known = 0, {}
        self._other = {inode: at for inode, at in self._other.items() if descriptors.get(inode) == at}
        found: dict[int, Tcp] = {}
        for inode, number in descriptors.items():
            if inode in self._other or (copy := self._copy(number, inode)) < 0:
                continue
            with socket.socket(fileno=copy) as ours:
                if ours.type != socket.SOCK_STREAM or ours.family not in (socket.AF_INET, socket.AF_INET6):
                    self._other[inode] = number
                    continue
                try:
                    here, there = _plain(ours.getsockname()), _plain(ours.getpeername())
                except OSError:
                    continue  # it listens, or is not connected yet
                if (tcp := self._told(copy, here, there)) is not None:
                    self._known[inode] = (number, here, there)
                    found[inode] = tcp
        return found

    def _copy(self, number: int, inode: int) -> int:
        """A descriptor of ours for a socket of the process; -1 where the process has it no more."""
        if _LIBC is None:
            raise NotAllowed
        if self._process < 0:
            try:
                self._process = os.pidfd_open(self._pid)
            except ProcessLookupError:
                return -1
            except OSError as error:
                raise NotAllowed from error
        copy = int(_LIBC.syscall(_GETFD, self._process, number, 0))
        if copy < 0:
            if ctypes.get_errno() in _CLOSED:
                return -1
            raise NotAllowed
        if os.fstat(copy).st_ino == inode:
            return copy
        os.close(copy)
        return -1  # the number is another one's by now

    def _told(self, copy: int, here: Address, there: Address) -> Tcp | None:
        """The kernel's state of a connection; None if it is not established."""
        assert _LIBC is not None
        size = self._size
        size.value = _TCP_INFO_BYTES
        if _LIBC.getsockopt(copy, socket.IPPROTO_TCP, socket.TCP_INFO, self._info, ctypes.byref(size)):
            return None
        if size.value < _INFO.size:
            raise NotAllowed  # a kernel before 4.10
        state, retransmits, unacked, rtt_us, acked, notsent, busy_us, full_us = _INFO.unpack_from(self._info)
        if state != _ESTABLISHED:
            return None
        return Tcp(here, there, bool(unacked or notsent), retransmits, rtt_us, acked, busy_us - full_us)


_CLOSED: Final = (3, 9)  # ESRCH, EBADF: the process, or its descriptor, is gone


def _plain(address: tuple[str, int]) -> Address:
    """The address without the prefix of an IPv4 address in an IPv6 socket: the same form in both families."""
    return address[0].removeprefix(_MAPPED), address[1]
