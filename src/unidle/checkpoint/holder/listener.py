"""Where a holder listens, and the connections that have not yet proved that they have its token: few, and not for long."""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from unidle.checkpoint.holder import handshake

STRANGERS_MOST: Final = 64


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection within its greeting."""

    link: socket.socket
    host: str
    began_s: float = field(default_factory=time.monotonic)
    dropped: bool = False


class Listener:
    """The listening sockets of a holder: one on the loopback address, and one for other hosts, which is encrypted.

    ``serve(link, local)`` is called in a thread for each connection that proved itself, and closes it.
    """

    def __init__(self, token: str, name: str, serve: Callable[[socket.socket, bool], None]) -> None:
        self._token, self._name, self._serve = token, name, serve
        self._strangers: set[_Stranger] = set()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = []

    def open(self, host: str) -> int:
        """Listen on an address; the port. One that is not this machine's (translated on the way) means all. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            door = socket.create_server((host, 0), family=family, backlog=256)
        except OSError:
            if is_loopback(host):
                raise
            door = socket.create_server(("", 0), family=family, backlog=256)
        door.setblocking(False)
        self._sockets.append(door)
        self._selector.register(door, selectors.EVENT_READ, is_loopback(host))
        return int(door.getsockname()[1])

    def accept(self, wait_s: float) -> None:
        """Let in those who are waiting; returns after ``wait_s`` at the latest without any."""
        for key, _ in self._selector.select(wait_s):
            door = key.fileobj
            assert isinstance(door, socket.socket)
            with contextlib.suppress(OSError):
                link, address = door.accept()
                self._greet(link, str(address[0]), bool(key.data))

    def close(self) -> None:
        for door in self._sockets:
            door.close()
        self._selector.close()

    def _greet(self, link: socket.socket, host: str, local: bool) -> None:
        stranger = _Stranger(link, host)
        with self._lock:
            if len(self._strangers) >= 2 * STRANGERS_MOST:  # those that were dropped have not all ended
                link.close()
                return
            _make_room([each for each in self._strangers if not each.dropped])
            self._strangers.add(stranger)
        thread = threading.Thread(target=self._run, args=(stranger, local), daemon=True, name="connection")
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._forget(stranger)
            link.close()

    def _run(self, stranger: _Stranger, local: bool) -> None:
        link = stranger.link
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = handshake.answer(link, self._token, self._name, encrypted=not local)
            link.settimeout(None)
        except Exception:  # whatever a stranger sends, it is refused and gone
            stranger.link.close()
            link.close()
            return
        finally:
            self._forget(stranger)
        self._serve(link, local)

    def _forget(self, stranger: _Stranger) -> None:
        with self._lock:
            self._strangers.discard(stranger)


def _make_room(strangers: list[_Stranger]) -> None:
    """Where there are as many as may be: end the oldest of the address with the most, which is not a peer in a hurry."""
    if len(strangers) >= STRANGERS_MOST:
        crowd = Counter(each.host for each in strangers).most_common(1)[0][0]
        oldest = min((each for each in strangers if each.host == crowd), key=lambda each: each.began_s)
        oldest.dropped = True
        with contextlib.suppress(OSError):
            oldest.link.shutdown(socket.SHUT_RDWR)
