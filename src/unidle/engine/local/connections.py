"""TCP connections between ranks, as each rank's network namespace lists them: who does not acknowledge."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from unidle.engine.local.looks import sockets_of

_ESTABLISHED: Final = b"01"
_RETRANSMITS: Final = b"01"
_OUTSIDE: Final = -1


class _Row(NamedTuple):
    here: tuple[str, bytes]  # network namespace, address:port
    there: bytes
    inode: int
    queued: bool
    stuck: bool


class Peers(NamedTuple):
    """Ranks (-1: somebody outside the gang) to whom a rank has sent something that is not acknowledged.

    ``queued``: any of it; ``stuck``: although it was sent again, twice or more.
    """

    queued: set[int]
    stuck: set[int]


def unacknowledged(pids: Mapping[int, int]) -> dict[int, Peers]:
    """Per rank those who do not acknowledge what it sent. ``pids``: the working process of each rank."""
    rows: dict[str, list[_Row]] = {}
    spaces = {rank: _namespace(pid) for rank, pid in pids.items()}
    for rank, space in spaces.items():
        if space not in rows:
            rows[space] = list(_rows(pids[rank], space))
    if not any(row.queued for listed in rows.values() for row in listed):
        return {}  # mostly so; to find out whose sockets they are costs more than all the rest
    owner = {(space, inode): rank for rank, space in spaces.items() for inode in sockets_of(pids[rank])}
    at: dict[bytes, int] = {}  # address and port -> the rank there
    for space, listed in rows.items():
        for row in listed:
            if (rank_here := owner.get((space, row.inode))) is not None:
                at[row.here[1]] = rank_here
    found: dict[int, Peers] = {}
    for space, listed in rows.items():
        for row in listed:
            rank_of = owner.get((space, row.inode))
            if not row.queued or rank_of is None:
                continue
            peers, peer = found.setdefault(rank_of, Peers(set(), set())), at.get(row.there, _OUTSIDE)
            peers.queued.add(peer)
            if row.stuck:
                peers.stuck.add(peer)
    return found


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _rows(pid: int, space: str) -> Iterator[_Row]:
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
            sent, timer, tries = words[4][:8], words[5][:2], int(words[6], 16)
            queued = int(sent, 16) > 0
            stuck = queued and timer == _RETRANSMITS and tries >= 2
            yield _Row((space, _address(words[1])), _address(words[2]), int(words[9]), queued, stuck)


def _address(text: bytes) -> bytes:
    """IPv4 addresses look alike in both tables."""
    host, _, port = text.partition(b":")
    return (host[-8:] if host.startswith(b"0000000000000000FFFF0000") else host) + b":" + port
