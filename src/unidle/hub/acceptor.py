"""New connections of the hub: which are admitted, and when no more are accepted."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from unidle.clock import Clock
from unidle.hub.authority import ServerIdentity
from unidle.hub.connection import Connection
from unidle.hub.limits import HubLimits
from unidle.hub.refusals import Refusals
from unidle.hub.stream import FrameStream
from unidle.hub.ungreeted import Ungreeted

_AT_ONCE: Final = 64  # connections that are accepted before others are read
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_NS: Final = 200_000_000


class Acceptor:
    """``after_ns``: no connection is accepted before, as this process may not open more files."""

    def __init__(
        self, identity: ServerIdentity, ungreeted: Ungreeted, refusals: Refusals, clock: Clock, limits: HubLimits
    ) -> None:  # fmt: skip
        self._identity, self._ungreeted, self._refusals = identity, ungreeted, refusals
        self._clock, self._limits = clock, limits
        self.after_ns = 0

    def may_accept(self, now_ns: int) -> bool:
        return now_ns >= self.after_ns and self._has_room(now_ns)

    def _has_room(self, now_ns: int) -> bool:
        return not self._ungreeted.full or self._ungreeted.in_the_way(now_ns) is not None

    def accept(self, listener: socket.socket, make_room: Callable[[Connection], None]) -> list[Connection]:
        """Connections that begin. ``make_room`` refuses one that others wait for."""
        found: list[Connection] = []
        for _ in range(_AT_ONCE):
            now_ns = self._clock.now_ns()
            if not self._has_room(now_ns):
                break
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    self._refusals.add(now_ns, "descriptors", "", os.strerror(error.errno or 0))
                    self.after_ns = now_ns + _PAUSE_NS
                    break
                continue  # that client is gone again
            connection = self._admitted(sock, str(address[0]), now_ns, make_room)
            if connection is not None:
                found.append(connection)
        return found

    def _admitted(
        self, sock: socket.socket, address: str, now_ns: int, make_room: Callable[[Connection], None]
    ) -> Connection | None:
        if not self._ungreeted.allows(address):
            self._refusals.add(now_ns, "address", address, "too many of its connections are without a hello")
            sock.close()
            return None
        if (oldest := self._ungreeted.in_the_way(now_ns)) is not None:
            make_room(oldest)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._identity.context(time.time())
            tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:
            self._refusals.add(now_ns, "tls", address, str(error))
            sock.close()
            return None
        assert isinstance(tls, ssl.SSLSocket)
        connection = Connection(FrameStream(tls), address, now_ns, self._limits.hello_ns)
        self._ungreeted.add(connection)
        return connection
