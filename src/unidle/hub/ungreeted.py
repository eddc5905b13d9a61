"""Connections without an accepted hello: how many there may be, which one makes room, and how long each may take."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, ip_address

from unidle.hub.connection import Connection


class Ungreeted:
    """At most ``most`` connections, of which ``of_address`` are of one address; an IPv6 address counts with its /64.

    A connection that has had ``grace_ns`` makes room for one that waits: one that sends nothing holds a place for that
    long while others wait, and until its deadline otherwise.
    """

    def __init__(self, most: int, of_address: int, grace_ns: int) -> None:
        self._most, self._of_address, self._grace_ns = most, of_address, grace_ns
        self._all: dict[int, Connection] = {}  # by descriptor, the oldest first
        self._addresses: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        return len(self._all) >= self._most

    def allows(self, address: str) -> bool:
        return self._addresses[group_of(address)] < self._of_address

    def add(self, connection: Connection) -> None:
        self._all[connection.fd] = connection
        self._addresses[group_of(connection.address)] += 1

    def discard(self, connection: Connection) -> None:
        if self._all.pop(connection.fd, None) is not None:
            group = group_of(connection.address)
            self._addresses[group] -= 1
            if not self._addresses[group]:
                del self._addresses[group]

    def late(self, now_ns: int) -> list[Connection]:
        """Those whose time is over."""
        found = []
        for connection in self._all.values():
            if connection.deadline_ns > now_ns:
                break  # later ones have later deadlines
            found.append(connection)
        return found

    def in_the_way(self, now_ns: int) -> Connection | None:
        """The oldest one, where all places are taken and it has had its grace."""
        if not self.full:
            return None
        oldest = next(iter(self._all.values()))
        return oldest if now_ns - oldest.accepted_ns >= self._grace_ns else None

    def next_ns(self, now_ns: int) -> int | None:
        """The next deadline, or the end of a grace, if all places are taken."""
        oldest = next(iter(self._all.values()), None)
        if oldest is None:
            return None
        grace_ns = oldest.accepted_ns + self._grace_ns
        return grace_ns if self.full and now_ns < grace_ns else oldest.deadline_ns


def group_of(address: str) -> str:
    """Addresses that one host may have as many of as it likes count as one."""
    if ":" not in address:
        return address
    found = ip_address(address.partition("%")[0])
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return found.packed[:8].hex()
