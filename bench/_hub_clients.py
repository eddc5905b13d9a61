"""Simulated boxes for ``bench/hub.py``: real TLS connections of one process, on one thread, each from an address of its own.

    python bench/_hub_clients.py PORT RATE AUTHORITY < CLIENTS

``CLIENTS``: lines of ``address node token``; ``RATE``: marks a second of all of them, one in a frame; ``AUTHORITY``: the
file with the hub's certificates. Marks are sent from SIGUSR1 to SIGUSR2. A client that loses its connection dials again after 0.1 to 1 s.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import random
import resource
import select
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable

from unidle import wire

STEP_S = 0.01
GIVE_UP_S = wire.HELLO_WITHIN_S
PING = b'{"f":"ping","n":'
PONG = b'{"f":"pong","n":%d,"ping":%d,"now":%d}'
MARK = b'{"f":"marks","attempt":1,"rank":0,"first":%d,"marks":[{"k":"step","t":%d,"n":%d,"o":"log"}]}'


class Client:
    __slots__ = (
        "address",
        "began",
        "fd",
        "first",
        "node",
        "number",
        "pongs",
        "ready",
        "sock",
        "tls",
        "token",
        "unframer",
        "welcome",
    )

    def __init__(self, number: int, address: str, node: str, token: str) -> None:
        self.number, self.address, self.node, self.token = number, address, node, token
        self.first = 0
        self.began = 0.0
        self.fd = -1
        self.reset()

    def reset(self) -> None:
        self.sock: socket.socket | None = None
        self.tls: ssl.SSLSocket | None = None
        self.ready = self.welcome = False
        self.pongs = 0
        self.unframer = wire.Unframer(wire.FRAME_BYTES)


class Clients:
    def __init__(self, clients: list[Client], port: int, rate: float, authority: str) -> None:
        self.clients, self.port = clients, port
        self.context = ssl.create_default_context(cadata=authority)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.poller = select.epoll()
        self.of: dict[int, Client] = {}
        self.view = memoryview(bytearray(16384))
        self.waiting = [(0.0, client.number) for client in clients]
        self.dialling: dict[int, Client] = {}  # by number, the oldest first
        self.a_second = rate
        self.sent_until = time.monotonic()
        self.owed = 0.0
        self.sending = False
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "sending", True))
        signal.signal(signal.SIGUSR2, lambda *_: setattr(self, "sending", False))
        self.turn = 0

    def run(self) -> None:
        while True:
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                self.tried(self.clients[heapq.heappop(self.waiting)[1]], self.dial)
            for client in list(self.dialling.values()):
                if now - client.began < GIVE_UP_S:
                    break
                self.lost(client)
            for fd, _ in self.poller.poll(STEP_S):
                if (ready := self.of.get(fd)) is not None:
                    self.tried(ready, self.serve)
            if self.sending:
                self.send_marks(time.monotonic())
            else:
                self.sent_until = time.monotonic()

    def tried(self, client: Client, do: Callable[[Client], None]) -> None:
        try:
            do(client)
        except (OSError, wire.Malformed):
            self.lost(client)

    def lost(self, client: Client) -> None:
        self.dialling.pop(client.number, None)
        self.of.pop(client.fd, None)
        for each in (client.tls, client.sock):
            if each is not None:
                each.close()
        client.reset()
        heapq.heappush(self.waiting, (time.monotonic() + random.uniform(0.1, 1.0), client.number))

    def dial(self, client: Client) -> None:
        client.began = time.monotonic()
        self.dialling[client.number] = client
        client.sock = sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((client.address, 0))
        client.fd = sock.fileno()
        self.of[client.fd] = client
        with contextlib.suppress(BlockingIOError):
            sock.connect(("127.0.0.1", self.port))
        self.poller.register(client.fd, select.EPOLLOUT)

    def serve(self, client: Client) -> None:
        tls = client.tls or self.connected(client)
        if not client.ready:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self.poller.modify(client.fd, select.EPOLLIN)
                return
            client.ready = True
            self.poller.modify(client.fd, select.EPOLLIN)
            hello = {"f": "hello", "v": 1, "kind": "box", "node": client.node, "job": "job-1", "token": client.token,
                     "boot": "b", "now": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "n": 0,
                     "box": {"attempts": [{"attempt": 1, "ranks": {"0": {"marks": 12, "ended": False}}}]}}  # fmt: skip
            tls.send(wire.encode(hello))
        try:
            count = tls.recv_into(self.view)
        except ssl.SSLWantReadError:
            return
        if not count:
            raise OSError(errno.ECONNRESET, "closed")
        for payload in client.unframer.feed(bytes(self.view[:count])):
            if payload.startswith(PING):
                client.pongs += 1
                ping = int(payload[len(PING) : payload.index(b",", len(PING))])
                now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                tls.send(wire.framed(PONG % (client.pongs, ping, now_ns)))
            elif payload.startswith(b'{"f":"welcome"'):
                client.welcome = True
                self.dialling.pop(client.number, None)

    def connected(self, client: Client) -> ssl.SSLSocket:
        sock = client.sock
        assert sock is not None
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, "connect")
        client.began = time.monotonic()  # the hub counts from here
        self.dialling[client.number] = self.dialling.pop(client.number)
        client.tls = self.context.wrap_socket(
            sock, do_handshake_on_connect=False, server_hostname="unidle-hub"
        )
        client.sock = None
        return client.tls

    def send_marks(self, now: float) -> None:
        """The marks that are due, of one client after the other; what a slow process cannot send is not made up for."""
        self.owed = min(self.owed + (now - self.sent_until) * self.a_second, self.a_second)
        self.sent_until = now
        while self.owed >= 1:
            self.owed -= 1
            client = self.clients[self.turn]
            self.turn = (self.turn + 1) % len(self.clients)
            if client.welcome and client.tls is not None:
                t = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                mark = MARK % (client.first, t, client.first)
                client.first += 1
                self.tried(client, lambda each, mark=mark: each.tls.send(wire.framed(mark)))  # type: ignore[misc]


def main() -> None:
    _, port, rate, authority = sys.argv
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lines = [line.split() for line in sys.stdin]
    with open(authority, encoding="ascii") as file:
        pem = file.read()
    Clients([Client(k, *line) for k, line in enumerate(lines)], int(port), float(rate), pem).run()


if __name__ == "__main__":
    main()
