"""TCP sockets of another process as the kernel knows them: a copy of each is taken for a moment and asked.

Costs some microseconds a socket, where listing the connections of a network namespace takes 20 ms. Allowed to
whom ``pidfd_getfd`` allows it: root, and the user's own processes where tracing them is.
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


def connections_of(pid: int) -> dict[int, Tcp]:
    """Established TCP connections of a process by inode. Errors: :class:`NotAllowed`."""
    descriptors = inodes_of(pid)
    if not descriptors:
        return {}
    if _LIBC is None:
        raise NotAllowed
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return {}
    except OSError as error:
        raise NotAllowed from error
    try:
        copies = ((inode, _copy(process, number)) for inode, number in descriptors.items())
        return {
            inode: tcp for inode, copy in copies if copy is not None and (tcp := _asked(copy)) is not None
        }
    finally:
        os.close(process)


def _copy(process: int, number: int) -> int | None:
    assert _LIBC is not None
    fd = int(_LIBC.syscall(_GETFD, process, number, 0))
    if fd >= 0:
        return fd
    if ctypes.get_errno() in _CLOSED:
        return None
    raise NotAllowed


_CLOSED: Final = (3, 9)  # ESRCH, EBADF: the process, or its descriptor, is gone


def _asked(fd: int) -> Tcp | None:
    """What there is to say of a socket, which is closed; None for one that is no connection."""
    try:
        with socket.socket(fileno=fd) as copy:
            if copy.type != socket.SOCK_STREAM or copy.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            here, there = copy.getsockname(), copy.getpeername()
    except OSError:
        return None
    if len(info) < _INFO.size:
        raise NotAllowed  # a kernel before 4.10
    state, retransmits, unacked, rtt_us, acked, notsent, busy_us, full_us = _INFO.unpack_from(info)
    if state != _ESTABLISHED:
        return None
    return Tcp(
        _plain(here), _plain(there), bool(unacked or notsent), retransmits, rtt_us, acked, busy_us - full_us
    )


def _plain(address: tuple[str, int]) -> Address:
    """IPv4 addresses look alike in both families."""
    return address[0].removeprefix(_MAPPED), address[1]
