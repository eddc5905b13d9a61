"""A small real server of HTTPS in place of an API server, for what a real one does only by chance."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from kube_cluster.pki import Authority, Pair


@dataclass
class Server:
    """``answer`` writes the answer of each request; ``requests`` are those that came, with their headers."""

    port: int
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    connections: int = 0
    bodies: list[bytes] = field(default_factory=list)

    def urls(self, scheme: str = "https") -> str:
        return f"{scheme}://127.0.0.1:{self.port}"


Answers = Callable[[BaseHTTPRequestHandler], None]


def reply(
    request: BaseHTTPRequestHandler, status: int, body: object = None, headers: dict[str, str] | None = None
) -> None:
    """An answer in JSON, or of these bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request.send_response(status)
    for key, value in (headers or {}).items():
        request.send_header(key, value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)


def refuse(request: BaseHTTPRequestHandler, status: int, reason: str, message: str = "no") -> None:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    reply(request, status, {**body, "reason": reason, "message": message})


class Listener(ThreadingHTTPServer):
    """Serves TLS where it has a ``pair``."""

    daemon_threads = True

    def __init__(
        self, found: Server, answer: Answers, pair: Pair | None, client_authority: Path | None
    ) -> None:
        self._found, self._pair, self._client_authority = found, pair, client_authority
        super().__init__(("127.0.0.1", 0), _handler(found, answer))

    def get_request(self) -> tuple[socket.socket, Any]:
        end, address = super().get_request()
        self._found.connections += 1
        if self._pair is None:
            return end, address
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._pair.certificate, self._pair.key)
        if self._client_authority is not None:
            context.load_verify_locations(self._client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        end.settimeout(30)
        return context.wrap_socket(end, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, *_: Any) -> None:
        pass  # clients leave when they like


def _handler(found: Server, answer: Answers) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            found.bodies.append(self.rfile.read(length) if length else b"")
            found.requests.append((self.command, self.path, dict(self.headers.items())))
            answer(self)

        do_GET = do_POST = do_DELETE = do_PATCH = handle_any  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serving(
    answer: Answers, pair: Pair | None = None, client_authority: Path | None = None
) -> Iterator[Server]:
    """Serve until the end of the block; with ``pair`` over TLS, and only to clients that ``client_authority`` signed."""
    found = Server(0)
    listener = Listener(found, answer, pair, client_authority)
    found.port = listener.server_port
    threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield found
    finally:
        listener.shutdown()
        listener.server_close()


def authority(folder: Path) -> tuple[Authority, Pair]:
    """An authority, and a server's certificate for 127.0.0.1 and ``api.test``."""
    made = Authority(folder, "ca")
    return made, made.sign(folder / "server", "server", names=["127.0.0.1", "api.test"])
