"""A real HTTP server for webhooks, whose answers the test chooses."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Received"], tuple[int, dict[str, str]]]


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    handler: BaseHTTPRequestHandler

    @property
    def notice(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class Receiver:
    """``reply`` gives status and headers; it may raise ConnectionError to hang up, or wait."""

    reply: Reply = lambda _: (200, {})
    all: list[Received] = field(default_factory=list)
    taken: list[dict[str, Any]] = field(default_factory=list)  # what was answered with 2xx
    in_flight: int = 0
    in_flight_most: int = 0
    port: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?room=1"

    def until(self, holds: Callable[[], bool], limit_s: float = 30) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, limit_s), (len(self.all), self.taken)

    def distinct(self) -> dict[str, dict[str, Any]]:
        """What a receiver that goes by the id has counted."""
        return {one["id"]: one for one in self.taken}


@contextmanager
def receiver(
    reply: Reply = lambda _: (200, {}), *, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """A receiver that listens while the block runs."""
    found = Receiver(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            one = Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body, self)
            here = [one]

            def left() -> None:
                with found.changed:
                    found.in_flight -= len(here)
                    here.clear()
                    found.changed.notify_all()

            with found.changed:
                found.all.append(one)
                found.in_flight += 1
                found.in_flight_most = max(found.in_flight_most, found.in_flight)
                found.changed.notify_all()
            try:
                status, headers = found.reply(one)
                left()  # before the answer: the next may come as soon as that is there
                self.send_response(status)
                for key, value in {"Content-Length": "0", **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if 200 <= status < 300:
                    found.taken.append(one.notice)
            except OSError:
                left()
                self.close_connection = True
            with found.changed:
                found.changed.notify_all()

        def do_GET(self) -> None:  # what a redirect would become
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            pass  # a client that hangs up is what some tests are about

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
