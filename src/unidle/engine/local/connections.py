"""TCP connections between ranks: who does not acknowledge, and how much of the time data is on its way."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from unidle.engine.local.sockets import Address, NotAllowed, Sockets, Tcp, inodes_of
from unidle.jobs.vitals import LinkVitals

_ESTABLISHED: Final = b"01"
_RETRANSMITS: Final = b"01"
_STUCK_TRIES: Final = 2
_OUTSIDE: Final = -1
_LOOPBACK: Final = ("127.", "::1")
_MAPPED: Final = bytes(10) + b"\xff\xff"

_Place = tuple[str, Address]  # network namespace where the address means something in it only


class Connections:
    """The connections of one gang's ranks from reading to reading."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], Tcp] = {}
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
        now: dict[tuple[int, int], Tcp] = {}
        for rank, held in found.items():
            by_peer: dict[int, LinkVitals] = {}
            for inode, tcp in held.items():
                key = (pids[rank], inode)
                now[key] = tcp
                before = self._before.get(key)
                if not tcp.queued and (before is None or before.acked_bytes == tcp.acked_bytes):
                    continue  # nothing was sent
                peer = at.get(_place(spaces[rank], tcp.there), _OUTSIDE)
                by_peer[peer] = _together(by_peer.get(peer), _link(peer, tcp, before, span_ns))
            if by_peer:
                links[rank] = tuple(by_peer[peer] for peer in sorted(by_peer))
        self._before = now
        return links

    def close(self, gone: Collection[int] | None = None) -> None:
        """Let go of these processes, or of all."""
        for pid in list(self._sockets) if gone is None else gone:
            self._sockets.pop(pid).close()

    def _of(self, pid: int) -> dict[int, Tcp]:
        if pid not in self._sockets:
            self._sockets[pid] = Sockets(pid)
        return self._sockets[pid].read()


def _link(peer: int, tcp: Tcp, before: Tcp | None, span_ns: int) -> LinkVitals:
    """The state of the link to ``peer``, from a connection on which data was sent."""
    if tcp.busy_us < 0:  # times are not known
        return LinkVitals(peer, span_ns, 0, tcp.retransmits >= _STUCK_TRIES)
    busy_us = 0 if before is None else max(tcp.busy_us - before.busy_us, 0)
    moved = before is not None and tcp.acked_bytes != before.acked_bytes
    stuck = tcp.queued and tcp.retransmits >= _STUCK_TRIES
    return LinkVitals(peer, min(busy_us * 1000, span_ns), tcp.rtt_us * 1000 if moved else 0, stuck)


def _together(one: LinkVitals | None, other: LinkVitals) -> LinkVitals:
    if one is None:
        return other
    return LinkVitals(
        one.peer, max(one.busy_ns, other.busy_ns), max(one.rtt_ns, other.rtt_ns), one.stuck or other.stuck
    )


def _place(space: str, address: Address) -> _Place:
    return (space if address[0].startswith(_LOOPBACK) else "", address)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


# -- as the kernel lists them for everybody --------------------------------------------------------


def _listed(pids: Mapping[int, int], spaces: Mapping[int, str]) -> dict[int, dict[int, Tcp]]:
    """The same from each network namespace's tables, without times (``busy_us`` is -1)."""
    rows = {space: dict(_rows(pids[rank])) for rank, space in spaces.items()}
    if not any(tcp.queued for held in rows.values() for tcp in held.values()):
        return {}  # mostly so; to find out whose sockets they are costs more than all the rest
    return {
        rank: {inode: rows[spaces[rank]][inode] for inode in inodes_of(pid) if inode in rows[spaces[rank]]}
        for rank, pid in pids.items()
    }


def _rows(pid: int) -> Iterator[tuple[int, Tcp]]:
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", "rb") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) < 10 or words[3] != _ESTABLISHED:
                continue
            queued = int(words[4][:8], 16) > 0
            tries = int(words[6], 16) if words[5][:2] == _RETRANSMITS else 0
            yield int(words[9]), Tcp(_address(words[1]), _address(words[2]), queued, tries, 0, 0, -1)


def _address(text: bytes) -> Address:
    """An address of the kernel's tables; an IPv4 address has the same form from either table."""
    host, _, port = text.decode("ascii").partition(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    packed = b"".join(words)
    if len(packed) == 16 and packed.startswith(_MAPPED):
        packed = packed[12:]
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)
