"""Whether nodes reach each other: tried, in threads of their own, when nothing gets through between two ranks.

A gang's connections show only where data was on its way at that moment. Which node reaches no other, or all but
one, shows where the fault is.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Collection, Mapping
from typing import Final

from unidle.engine.local.ranks import netns

_PORT: Final = 9  # nobody listens: a refusal is an answer
_PATIENCE_S: Final = 1.5
_AGAIN_S: Final = 3.0  # between two trials of one gang
_MOST: Final = 8  # nodes
_ANSWERS: Final = (0, errno.ECONNREFUSED)

Link = tuple[str, str]


class Reachability:
    """Of nodes that are network namespaces of this machine: ``spaces`` by node, ``addresses`` as well."""

    def __init__(self, spaces: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        self._spaces, self._addresses = spaces, addresses
        self._lock = threading.Lock()
        self._begun_s = -_AGAIN_S
        self._out = 0
        self._reached: set[Link] = set()
        self._tried: set[Link] = set()

    def ask(self, nodes: Collection[str], first: Collection[str]) -> None:
        """Try all links between ``nodes``, those of ``first`` in any case; nothing is waited for."""
        now_s = time.monotonic()
        chosen = sorted(nodes, key=lambda node: (node not in first, node))[:_MOST]
        chosen = [node for node in chosen if self._spaces.get(node) and self._addresses.get(node)]
        with self._lock:
            if self._out or now_s - self._begun_s < _AGAIN_S or len(chosen) < 2:
                return
            self._begun_s, self._out = now_s, len(chosen)
            self._reached, self._tried = set(), set()
        for node in chosen:
            others = [other for other in chosen if other != node]
            threading.Thread(target=self._try, args=(node, others), name="unidle-reach", daemon=True).start()

    def answer(self) -> tuple[frozenset[Link], frozenset[Link]]:
        """Links that work and links that do not, of the last trial that is complete; none while one is under way."""
        with self._lock:
            if self._out:
                return frozenset(), frozenset()
            return frozenset(self._reached), frozenset(self._tried - self._reached)

    def _try(self, node: str, others: list[str]) -> None:
        reached: set[str] = set()
        tried = False
        try:
            netns.enter(self._spaces[node])
            reached = _answering({other: self._addresses[other] for other in others})
            tried = True
        except OSError:
            pass  # who may not enter cannot tell
        links = {other: (min(node, other), max(node, other)) for other in others}
        with self._lock:
            self._out -= 1
            if tried:
                self._tried |= set(links.values())
                self._reached |= {links[other] for other in reached}


def _answering(addresses: Mapping[str, str]) -> set[str]:
    """Those that answer at all from here, each within the same time."""
    waiting: dict[int, tuple[str, socket.socket]] = {}
    found: set[str] = set()
    poller = select.poll()
    try:
        for name, address in addresses.items():
            one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            one.setblocking(False)
            waiting[one.fileno()] = (name, one)
            if one.connect_ex((address, _PORT)) in _ANSWERS:
                found.add(name)
            else:
                poller.register(one, select.POLLOUT)
        end_s = time.monotonic() + _PATIENCE_S
        while len(found) < len(addresses) and (left_s := end_s - time.monotonic()) > 0:
            for fd, _ in poller.poll(left_s * 1000):
                poller.unregister(fd)
                name, one = waiting[fd]
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERS:
                    found.add(name)
    finally:
        for _, one in waiting.values():
            one.close()
    return found
