"""A real server that speaks the protocol of ``/chat/completions`` and refuses requests that do not; answers are scripted."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Served"], None]


class Served(BaseHTTPRequestHandler):
    """One request; a reply writes with these."""

    protocol_version = "HTTP/1.1"
    endpoint: FakeModel

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.endpoint.wrong.append("GET")
        self.send(405, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        problem = self._problem(body)
        if problem:
            self.endpoint.wrong.append(problem)
            self.send(400, json.dumps({"error": {"message": problem}}).encode())
            return
        self.endpoint.requests.append(json.loads(body))
        number = len(self.endpoint.requests) - 1
        self.endpoint.replies[min(number, len(self.endpoint.replies) - 1)](self)

    def _problem(self, body: bytes) -> str:
        if self.path != "/v1/chat/completions":
            return f"path {self.path}"
        if self.headers.get_content_type() != "application/json":
            return "content type"
        if self.endpoint.key and self.headers["Authorization"] != f"Bearer {self.endpoint.key}":
            return "key"
        found = json.loads(body)
        if found["model"] != "small" or not found["messages"]:
            return "model or messages"
        roles = [one["role"] for one in found["messages"]]
        if not set(roles) <= {"system", "user", "assistant"} or roles[-1] != "user":
            return "roles"
        return "" if all(isinstance(one["content"], str) for one in found["messages"]) else "content"

    def send(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, pieces: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()


@dataclass
class FakeModel:
    replies: list[Reply]
    key: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    url: str = ""
    leave: threading.Event = field(default_factory=threading.Event)

    def seen(self, number: int) -> str:
        """What the model was sent."""
        return str(self.requests[number]["messages"][-1]["content"])


@contextmanager
def served(*replies: Reply, key: str = "", tls: ssl.SSLContext | None = None) -> Iterator[FakeModel]:
    """An endpoint that answers with these, the last one again and again."""
    model = FakeModel(list(replies), key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Served,), {"endpoint": model}))
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    host = "localhost" if tls is not None else "127.0.0.1"
    model.url = f"http{'s' if tls else ''}://{host}:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield model
    finally:
        model.leave.set()
        server.shutdown()
        thread.join()
        server.server_close()


def completion(content: object, reason: str = "stop") -> bytes:
    message = {"role": "assistant", "content": content}
    return json.dumps(
        {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}
    ).encode()


def says(content: object, reason: str = "stop") -> Reply:
    return lambda request: request.send(200, completion(content, reason))


def edits(*several: dict[str, str]) -> Reply:
    return says(json.dumps({"edits": list(several)}))


def events(text: str, size: int = 7, done: bool = True, reason: str | None = "stop") -> bytes:
    """A stream as servers send it, with a comment and the usage at its end."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text[at : at + size]} for at in range(0, len(text), size)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    if reason:
        chunks += [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {"choices": [], "usage": {"total_tokens": 3}},
        ]
    body = ": keep-alive\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return (body + ("data: [DONE]\n\n" if done else "")).encode()


def streams(text: str, cut: int = 11, **how: Any) -> Reply:
    """Pieces that end anywhere, within lines and characters."""
    raw = events(text, **how)
    return lambda request: request.stream([*(raw[at : at + cut] for at in range(0, len(raw), cut)), b""])


def fails(status: int, message: str = "busy", **headers: str) -> Reply:
    return lambda request: request.send(
        status, json.dumps({"error": {"message": message}}).encode(), **headers
    )


def resets(request: Served) -> None:
    """The connection is reset, without an answer."""
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()
    request.close_connection = True


def hangs(request: Served) -> None:
    """No answer until the test ends."""
    request.endpoint.leave.wait(60)
    request.close_connection = True
