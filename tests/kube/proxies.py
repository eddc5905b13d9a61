"""Real proxies in front of a real API server, which do to requests what networks and busy servers do."""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from unidle.kube.access import ClusterAccess
from unidle.kube.connection import Pool


class Pump:
    """Passes bytes on between clients and ``server``. TLS goes through it untouched."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self.accepted = 0
        self.refuses = False
        self._passes = threading.Event()
        self._passes.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection that there is."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    socket.socket.shutdown(end, socket.SHUT_RDWR)
                end.close()

    def stall(self) -> None:
        """Pass nothing on any more, and keep all connections open."""
        self._passes.clear()

    def resume(self) -> None:
        self._passes.set()

    def close(self) -> None:
        self._passes.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(self._server, 10)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        try:
            with selectors.DefaultSelector() as ready:
                for end in other:
                    ready.register(end, selectors.EVENT_READ)
                while True:
                    for key, _ in ready.select():
                        end = key.fileobj
                        assert isinstance(end, socket.socket)
                        found = end.recv(1 << 16)
                        self._passes.wait()
                        if not found:
                            return
                        other[end].sendall(found)
        except (OSError, ValueError):
            return
        finally:
            client.close()
            server.close()


@contextlib.contextmanager
def pump(access: ClusterAccess) -> Iterator[Pump]:
    url = urlsplit(access.server)
    found = Pump((url.hostname or "", url.port or 443))
    try:
        yield found
    finally:
        found.close()


@dataclass(frozen=True)
class Answer:
    """What the front answers of its own."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def status_answer(status: int, reason: str, message: str, **headers: str) -> Answer:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return Answer(
        status,
        json.dumps({**body, "reason": reason, "message": message}).encode(),
        tuple((key.replace("_", "-"), value) for key, value in headers.items()),
    )


Rule = Callable[[str, str], Answer | None]
"""A method and a path, and what is answered; None: the API server answers."""


class Front:
    """A server of HTTP that passes requests on to the API server, with its credentials.

    ``rule`` may answer in its place. ``after``: called with method and path once the API server has answered; where it
    is true, the answer is lost.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self.pool = Pool(access)
        self.rule: Rule = lambda _method, _path: None
        self.loses: Callable[[str, str], bool] = lambda _method, _path: False
        self.requests: list[tuple[str, str]] = []
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                front.handle(self)

            do_GET = do_POST = do_DELETE = do_PATCH = handle_any  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass  # clients leave when they like

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length", 0))
        body = request.rfile.read(length) if length else None
        self.requests.append((request.command, request.path))
        answer = self.rule(request.command, request.path)
        if answer is not None:
            self._own(request, answer)
            return
        upstream = http.client.HTTPSConnection(
            self.pool.host, self.pool.port, context=self._context(), timeout=120
        )
        with contextlib.closing(upstream):
            kept = {k: v for k, v in request.headers.items() if k in ("Accept", "Content-Type")}
            upstream.request(request.command, request.path, body, kept)
            response = upstream.getresponse()
            if self.loses(request.command, request.path):
                response.read()
                request.close_connection = True
                return
            self._pass(request, response)

    def _context(self) -> ssl.SSLContext:
        return self.pool.context(self.access.credentials.now().pair)

    def _own(self, request: BaseHTTPRequestHandler, answer: Answer) -> None:
        request.send_response(answer.status)
        for key, value in answer.headers:
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(answer.body)))
        request.end_headers()
        request.wfile.write(answer.body)

    def _pass(self, request: BaseHTTPRequestHandler, response: http.client.HTTPResponse) -> None:
        request.send_response(response.status)
        for key in ("Content-Type", "Retry-After"):
            if value := response.getheader(key):
                request.send_header(key, value)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        while found := response.read1(1 << 16):
            request.wfile.write(b"%x\r\n%b\r\n" % (len(found), found))
            request.wfile.flush()
        request.wfile.write(b"0\r\n\r\n")


@contextlib.contextmanager
def front(access: ClusterAccess) -> Iterator[Front]:
    found = Front(access)
    try:
        yield found
    finally:
        found.close()
