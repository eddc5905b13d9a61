"""Finds a hub again whenever the connection to it is gone: which address, by which name, and after how long a wait."""

from __future__ import annotations

import os
import socket
import ssl

from unidle.box.link import HubLink, LinkEnded

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

FIRST_WAIT_NS = 100_000_000
MOST_WAIT_NS = 3_000_000_000
WITHIN_NS = 5_000_000_000  # connection, TLS and hello, until the welcome


class Dialler:
    """``hubs`` are tried in turn, and so are ``names`` of their certificate; an empty one is that of the host. Waits double up to :data:`MOST_WAIT_NS`, each of them between half and the whole of it."""

    def __init__(self, hubs: list[tuple[str, int]], names: list[str], context: ssl.SSLContext) -> None:
        self._hubs, self._names, self._context = hubs, names, context
        self._at = 0
        self._name_at = 0
        self._wait_ns = FIRST_WAIT_NS
        self.next_ns = 0
        self._found: list[Any] | None = None
        self._resolving = False

    def dial(self, now_ns: int) -> HubLink | None:
        """A connection that begins; None while it is not time yet, or a name is being resolved. Errors: LinkEnded."""
        if now_ns < self.next_ns:
            return None
        host, port = self._hubs[self._at % len(self._hubs)]
        found = self._addresses(host, port)
        if found is None:
            self.next_ns = now_ns + 20_000_000
            return None
        if not found:
            raise LinkEnded(f"{host} has no address")
        family, _, _, _, address = found[0]
        return HubLink(self._context, address, family, self._names[self._name_at % len(self._names)] or host)

    def failed(self, now_ns: int, *, wrong_name: bool = False) -> None:
        """The connection ended, or did not come about: the next address, after a wait."""
        if wrong_name and len(self._names) > 1:
            self._name_at += 1
            if self._name_at % len(self._names):
                self.next_ns = now_ns  # the other name at once
                return
        self._at += 1
        share = int.from_bytes(os.urandom(2), "big")
        self.next_ns = now_ns + self._wait_ns // 2 + (self._wait_ns // 2 * share >> 16)
        self._wait_ns = min(2 * self._wait_ns, MOST_WAIT_NS)

    def welcomed(self) -> None:
        """This hub is the right one: it is the first to be tried again, soon."""
        self._wait_ns = FIRST_WAIT_NS

    def _addresses(self, host: str, port: int) -> list[Any] | None:
        """Addresses of a host; None while a thread resolves it, which may take long: the lease does not wait."""
        try:
            return socket.getaddrinfo(
                host.encode(), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except OSError:
            pass
        if self._found is not None:
            found, self._found = self._found, None
            return found
        if not self._resolving:
            self._resolving = True
            import threading  # only for hosts that have names

            threading.Thread(target=self._resolve, args=(host, port), daemon=True).start()
        return None

    def _resolve(self, host: str, port: int) -> None:
        try:
            self._found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
        except OSError:
            self._found = []
        self._resolving = False
