"""Whether a replica of a service answers: by a connection to its port, or by an HTTP request. Standard library only.

The replica's own supervisor checks it, on its machine: so it works wherever the replica runs.
"""

from __future__ import annotations

import socket

TYPE_CHECKING = False

if TYPE_CHECKING:
    from .step_counter import Mark

HOST = "127.0.0.1"
CHECK_S = 2.0
MISSES = 3
"""Checks in a row without an answer, after which a replica that was ready is not."""
_FIRST_BYTES = 64


class Readiness:
    """Marks of one replica: when it first answered, and times in which it did not."""

    def __init__(self, port: int, path: str) -> None:
        """``path``: of an HTTP request that is answered by a status below 400; empty: a connection is enough."""
        self.port, self._path = port, path
        self._ready = False
        self._misses = 0  # checks without an answer, since the last one with an answer
        self._since_ns = 0  # the first of them

    @classmethod
    def ordered(cls, order: str) -> Readiness:
        """Of an order: the port (0: any) and the path."""
        port, _, path = order.partition(" ")
        return cls(int(port) or free_port(), path)

    def check(self, t_ns: int) -> list[Mark]:
        """Marks that follow from a check that begins at ``t_ns``. It takes at most twice ``CHECK_S``."""
        if answers(self.port, self._path):
            misses, self._misses = self._misses, 0
            if not self._ready:
                self._ready = True
                return [{"k": "ready", "t": t_ns, "info": {"port": self.port}}]
            return [{"k": "span", "t": self._since_ns, "e": t_ns, "w": "unready"}] if misses >= MISSES else []
        if not self._ready:
            return []
        if not self._misses:
            self._since_ns = t_ns
        self._misses += 1
        return [{"k": "begin", "t": self._since_ns, "w": "unready"}] if self._misses == MISSES else []


def answers(port: int, path: str) -> bool:
    """Whether a program on this machine answers on the port."""
    try:
        with socket.create_connection((HOST, port), CHECK_S) as connection:
            if not path:
                return True
            connection.settimeout(CHECK_S)
            request = f"GET {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            words = connection.recv(_FIRST_BYTES).split(b" ", 2)
            return len(words) > 1 and words[0].startswith(b"HTTP/") and words[1][:1] in (b"2", b"3")
    except OSError:
        return False


def free_port() -> int:
    """A port of this machine on which no program listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])
