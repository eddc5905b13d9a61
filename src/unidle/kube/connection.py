"""Connections to the API server: TLS, a proxy, a deadline for each request, and a pool of those that are kept open."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from unidle.errors import BadInput
from unidle.kube.access import ClusterAccess
from unidle.kube.credentials import ClientPair
from unidle.kube.protocol import KubeError

CONNECT_S: Final = 10.0
# A peer that is there no more is found within half a minute, also by a watch on which nothing is sent.
_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
_BUFFER_BYTES: Final = 1 << 16
_IDLE_S: Final = 60.0  # servers close idle connections after 90 s or more; do not meet that moment
_MOST_IDLE: Final = 16


class _Reads(io.RawIOBase):
    """Reads of a socket, each of which ends at the connection's deadline at the latest."""

    def __init__(self, within: TimedSocket) -> None:
        self._within = within

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._within.recv_into(buffer)


class TimedSocket:
    """What ``http.client`` uses of a socket. ``deadline_s`` (monotonic) bounds a request, ``silent_s`` each read."""

    def __init__(self, under: socket.socket) -> None:
        self.under = under
        self.deadline_s: float | None = None
        self.silent_s: float | None = None

    def recv_into(self, buffer: Any) -> int:
        self.under.settimeout(self._left())
        return self.under.recv_into(buffer)

    def sendall(self, data: Any) -> None:
        self.under.settimeout(self._left())
        self.under.sendall(data)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Reads(self), _BUFFER_BYTES)

    def close(self) -> None:
        self.under.close()

    def break_off(self) -> None:
        """From another thread: reads and writes of this one fail from now on."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(
                self.under, socket.SHUT_RDWR
            )  # not that of TLS, which is not for other threads

    def fresh(self) -> bool:
        """Whether the server has neither closed it nor sent anything that was not asked for."""
        poller = select.poll()
        poller.register(self.under, select.POLLIN)
        return not poller.poll(0)

    def _left(self) -> float | None:
        lefts = [self.silent_s] if self.silent_s is not None else []
        if self.deadline_s is not None:
            left = self.deadline_s - time.monotonic()
            if left <= 0:
                raise TimeoutError
            lefts.append(left)
        return min(lefts) if lefts else None


class ApiConnection(http.client.HTTPConnection):
    """One connection. ``sock`` is a :class:`TimedSocket` once it is connected."""

    def __init__(self, pool: Pool, pair: ClientPair | None, deadline_s: float | None) -> None:
        self._pool, self.pair = pool, pair
        self._deadline_s = deadline_s
        self.used = False
        self.idle_since_s = 0.0
        super().__init__(pool.host, pool.port)
        if pool.proxy is not None:
            super().__init__(*pool.proxy)
            self.set_tunnel(pool.host, pool.port)

    @property
    def timed(self) -> TimedSocket:
        return cast("TimedSocket", self.sock)

    def connect(self) -> None:
        limit = CONNECT_S
        if self._deadline_s is not None:
            limit = min(limit, max(0.001, self._deadline_s - time.monotonic()))
        until_s = time.monotonic() + limit
        plain = socket.create_connection((self.host, self.port), limit)
        try:
            for level, option, value in _OPTIONS:
                plain.setsockopt(level, option, value)
            timed = TimedSocket(plain)
            timed.deadline_s = until_s
            self.sock: Any = timed
            if self._pool.proxy is not None:
                self._tunnel()  # type: ignore[attr-defined]
            if self._pool.tls:
                plain.settimeout(max(0.001, until_s - time.monotonic()))
                context = self._pool.context(self.pair)
                timed.under = context.wrap_socket(plain, server_hostname=self._pool.server_name)
        except BaseException:
            self.sock = None
            plain.close()
            raise


class Pool:
    """The connections of one client to one server. Used by several threads."""

    def __init__(self, access: ClusterAccess) -> None:
        url = urlsplit(access.server)
        self.tls = url.scheme == "https"
        self.host = url.hostname or ""
        self.port = url.port or (443 if self.tls else 80)
        self.prefix = url.path.rstrip("/")
        proxy = urlsplit(access.proxy) if access.proxy else None
        self.proxy = (proxy.hostname or "", proxy.port or 80) if proxy else None
        self.server_name = access.server_name or self.host
        self._access = access
        self._lock = threading.Lock()
        self._idle: list[ApiConnection] = []
        self._busy: set[ApiConnection] = set()
        self._closed = False

    @contextlib.contextmanager
    def connection(self, pair: ClientPair | None, deadline_s: float | None) -> Iterator[ApiConnection]:
        """One to use alone. It is kept for the next use where :attr:`ApiConnection.used` was set, else closed."""
        found = self._taken(pair) or ApiConnection(self, pair, deadline_s)
        found.used = False
        with self._lock:
            if self._closed:
                raise KubeError("the client is closed", reason="Closed")
            self._busy.add(found)
        try:
            yield found
        finally:
            with self._lock:
                self._busy.discard(found)
                keep = (
                    found.used
                    and found.sock is not None
                    and not self._closed
                    and len(self._idle) < _MOST_IDLE
                )
                if keep:
                    found.idle_since_s = time.monotonic()
                    self._idle.append(found)
            if not keep:
                found.close()

    def break_off(self) -> None:
        """Requests that run fail."""
        with self._lock:
            for connection in self._busy:
                if connection.sock is not None:
                    connection.timed.break_off()

    def close(self) -> None:
        """Requests that run fail, and there are no others."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        self.break_off()
        for connection in idle:
            connection.close()

    def context(self, pair: ClientPair | None) -> ssl.SSLContext:
        """Made for each connection: files of certificates may have been replaced."""
        access = self._access
        try:
            if access.insecure:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif isinstance(access.authority, bytes):
                context = ssl.create_default_context(cadata=access.authority.decode("ascii"))
            else:
                context = ssl.create_default_context(cafile=access.authority)
        except (OSError, ValueError) as error:
            raise _bad("certificate-authority", access, error) from None
        if pair is not None:
            try:
                with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
                    context.load_cert_chain(certificate, key)
            except (OSError, ValueError) as error:
                raise _bad("client-certificate", access, error) from None
        return context

    def _taken(self, pair: ClientPair | None) -> ApiConnection | None:
        """The one that was used last, if it is still good."""
        stale = []
        found = None
        with self._lock:
            while self._idle and found is None:
                last = self._idle.pop()
                old = time.monotonic() - last.idle_since_s > _IDLE_S
                if old or last.pair != pair or not last.timed.fresh():
                    stale.append(last)
                else:
                    found = last
        for connection in stale:
            connection.close()
        return found


def _bad(key: str, access: ClusterAccess, error: Exception) -> BadInput:
    return BadInput(
        f"cannot be used: {error}", field=key, remedy=f"check that it is a PEM file ({access.source})"
    )


@contextlib.contextmanager
def _as_file(data: bytes | Path) -> Iterator[str]:
    """A path of ``data``: keys from a kubeconfig reach OpenSSL without a file on disk."""
    if isinstance(data, Path):
        yield str(data)
        return
    fd = os.memfd_create("unidle-pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
