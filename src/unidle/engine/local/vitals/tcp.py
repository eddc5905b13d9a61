"""TCP connections between ranks: the kernel's state of each, who does not acknowledge, and how long data is on its way.

Each socket of another process is copied for a moment, and the copy is queried.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from unidle.jobs.vitals import LinkVitals, as_one

Address = tuple[str, int]

_GETFD: Final = 438  # the same on all architectures
_TCP_INFO_BYTES: Final = 192
_ESTABLISHED: Final = 1
_INFO: Final = struct.Struct("=B x B 21x I 40x I 48x Q 16x I 20x Q Q")
# tcpi_state, _retransmits, _unacked, _rtt, _bytes_acked, _notsent_bytes, _busy_time, _rwnd_limited (linux/tcp.h)
_MAPPED: Final = "::ffff:"
_LIST_EVERY: Final = 5  # readings
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if platform.system() == "Linux" else None
_CLOSED: Final = (3, 9)  # ESRCH, EBADF: the process, or its descriptor, is gone
_ESTABLISHED_HEX: Final = b"01"
_RETRANSMITS: Final = b"01"
_STUCK_TRIES: Final = 2
_OUTSIDE: Final = -1
_LOOPBACK: Final = ("127.", "::1")
_MAPPED_BYTES: Final = bytes(10) + b"\xff\xff"
_Place = tuple[str, Address]  # network namespace where the address means something in it only


class TcpState(NamedTuple):
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

    def read(self) -> dict[int, TcpState]:
        """The connections by inode. Errors: :class:`NotAllowed`."""
        if not self._known or self._unlisted == _LIST_EVERY:
            return self._listed()
        self._unlisted += 1
        found: dict[int, TcpState] = {}
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

    def _listed(self) -> dict[int, TcpState]:
        descriptors = inodes_of(self._pid)
        self._unlisted, self._known = 0, {}
        self._other = {inode: at for inode, at in self._other.items() if descriptors.get(inode) == at}
        found: dict[int, TcpState] = {}
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

    def _told(self, copy: int, here: Address, there: Address) -> TcpState | None:
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
        return TcpState(here, there, bool(unacked or notsent), retransmits, rtt_us, acked, busy_us - full_us)


def _plain(address: tuple[str, int]) -> Address:
    """The address without the prefix of an IPv4 address in an IPv6 socket: the same form in both families."""
    return address[0].removeprefix(_MAPPED), address[1]


class Connections:
    """The connections of one gang's ranks from reading to reading.

    ``outside``: connections to other machines are told apart by the address of their other end, and ``ends`` has the
    addresses of this one, by rank.
    """

    def __init__(self, *, outside: bool = False) -> None:
        self._outside = outside
        self.ends: dict[int, tuple[str, ...]] = {}
        self._before: dict[tuple[int, int], TcpState] = {}
        self._sockets: dict[int, Sockets] = {}  # by process
        self._spaces: dict[int, str] = {}  # likewise

    def read(
        self, pids: Mapping[int, int], span_ns: int, *, idle: bool = True
    ) -> dict[int, tuple[LinkVitals, ...]]:
        """The links of each rank that were in use. ``pids``: the working process of each rank.

        ``span_ns``: the time since the last reading. If sockets may not be copied, the kernel has to list all
        connections, which takes 20 ms: that is done only while the gang is ``idle``, and yields no times.
        """
        self.close(self._sockets.keys() - pids.values())
        self._spaces = {pid: self._spaces.get(pid) or _namespace(pid) for pid in pids.values()}
        spaces = {rank: self._spaces[pid] for rank, pid in pids.items()}
        try:
            found = {rank: self._of(pid) for rank, pid in pids.items()}
        except NotAllowed:
            self._before.clear()
            if not idle:
                return {}
            found = _listed(pids, spaces)
        at = {_place(spaces[rank], tcp.here): rank for rank, held in found.items() for tcp in held.values()}
        links: dict[int, tuple[LinkVitals, ...]] = {}
        self.ends = {}
        now: dict[tuple[int, int], TcpState] = {}
        for rank, held in found.items():
            by_peer: dict[tuple[int, str], LinkVitals] = {}
            ends: list[str] = []
            for inode, tcp in held.items():
                key = (pids[rank], inode)
                now[key] = tcp
                before = self._before.get(key)
                peer = at.get(_place(spaces[rank], tcp.there), _OUTSIDE)
                to = _far(tcp.there) if self._outside and peer == _OUTSIDE else ""
                if to:
                    ends.append(_far(tcp.here))
                if not tcp.queued and (before is None or before.acked_bytes == tcp.acked_bytes):
                    continue  # nothing was sent
                link = replace(_link(peer, tcp, before, span_ns), to=to)
                by_peer[peer, to] = as_one(by_peer.get((peer, to)), link)
            if by_peer:
                links[rank] = tuple(by_peer[key] for key in sorted(by_peer))
            if ends:
                self.ends[rank] = tuple(ends)
        self._before = now
        return links

    def close(self, gone: Collection[int] | None = None) -> None:
        """Let go of these processes, or of all."""
        for pid in list(self._sockets) if gone is None else gone:
            self._sockets.pop(pid).close()

    def _of(self, pid: int) -> dict[int, TcpState]:
        if pid not in self._sockets:
            self._sockets[pid] = Sockets(pid)
        return self._sockets[pid].read()


def _link(peer: int, tcp: TcpState, before: TcpState | None, span_ns: int) -> LinkVitals:
    """The state of the link to ``peer``, from a connection on which data was sent."""
    if tcp.busy_us < 0:  # times are not known
        return LinkVitals(peer, span_ns, 0, tcp.retransmits >= _STUCK_TRIES)
    busy_us = 0 if before is None else max(tcp.busy_us - before.busy_us, 0)
    moved = before is not None and tcp.acked_bytes != before.acked_bytes
    stuck = tcp.queued and tcp.retransmits >= _STUCK_TRIES
    return LinkVitals(peer, min(busy_us * 1000, span_ns), tcp.rtt_us * 1000 if moved else 0, stuck)


def _far(address: Address) -> str:
    """An address that means the same to other machines; empty for one that does not."""
    host, port = address
    return "" if host.startswith(_LOOPBACK) else f"{host}:{port}"


def _place(space: str, address: Address) -> _Place:
    return (space if address[0].startswith(_LOOPBACK) else "", address)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


# -- as the kernel lists them for everybody --------------------------------------------------------


def _listed(pids: Mapping[int, int], spaces: Mapping[int, str]) -> dict[int, dict[int, TcpState]]:
    """The same from each network namespace's tables, without times (``busy_us`` is -1)."""
    rows = {space: dict(_rows(pids[rank])) for rank, space in spaces.items()}
    if not any(tcp.queued for held in rows.values() for tcp in held.values()):
        return {}  # mostly so; to find out whose sockets they are costs more than all the rest
    return {
        rank: {inode: rows[spaces[rank]][inode] for inode in inodes_of(pid) if inode in rows[spaces[rank]]}
        for rank, pid in pids.items()
    }


def _rows(pid: int) -> Iterator[tuple[int, TcpState]]:
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", "rb") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) < 10 or words[3] != _ESTABLISHED_HEX:
                continue
            queued = int(words[4][:8], 16) > 0
            tries = int(words[6], 16) if words[5][:2] == _RETRANSMITS else 0
            yield int(words[9]), TcpState(_address(words[1]), _address(words[2]), queued, tries, 0, 0, -1)


def _address(text: bytes) -> Address:
    """An address of the kernel's tables; an IPv4 address has the same form from either table."""
    host, _, port = text.decode("ascii").partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    packed = b"".join(words)
    if len(packed) == 16 and packed.startswith(_MAPPED_BYTES):
        packed = packed[12:]
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)
