"""The HTTPS server that the API server passes commands on to: one thread for each connection, within bounds."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

import msgspec

from unidle.errors import UnidleError
from unidle.gateway.calls import Calls, told_of
from unidle.gateway.identity import CallForbidden, Identities
from unidle.hub.file_parts import NotThere
from unidle.hub.listening import listening
from unidle.kube.commands import VERSION
from unidle.kube.protocol import KubeError

_MOST_BODY: Final = 8 << 20
_MOST_AT_ONCE: Final = 64
_IDLE_S: Final = 60.0


class CallServer:
    """Serves until it is closed. ``context``: of TLS; the API server does not verify it. ``answer``: to the body of one call;
    it raises nothing, and is called by several threads."""

    def __init__(self, listen: str, context: ssl.SSLContext, answer: Callable[[bytes], bytes]) -> None:
        self.answer, self._context = answer, context
        self._sockets = listening(listen)
        for each in self._sockets:
            each.setblocking(True)
        self.addresses: list[tuple[str, int]] = [each.getsockname()[:2] for each in self._sockets]
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._accept, args=(one,), name="unidle-commands", daemon=True)
            for one in self._sockets
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._is_closed = True
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        with self._lock:
            still = list(self._open)
        for each in still:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for _ in range(_MOST_AT_ONCE):  # until no call runs
            self._slots.acquire()

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_closed:
            self._slots.acquire()
            try:
                accepted, address = listener.accept()
            except OSError:
                self._slots.release()
                return
            with self._lock:
                self._open.add(accepted)
            threading.Thread(
                target=self._serve, args=(accepted, address), name="unidle-command", daemon=True
            ).start()

    def _serve(self, accepted: socket.socket, address: Any) -> None:
        try:
            accepted.settimeout(_IDLE_S)
            with self._context.wrap_socket(accepted, server_side=True) as wrapped:
                with self._lock:
                    self._open.discard(accepted)
                    self._open.add(wrapped)
                try:
                    _Handler(wrapped, address, self)  # type: ignore[arg-type]
                finally:
                    with self._lock:
                        self._open.discard(wrapped)
        except (OSError, ValueError):
            pass
        finally:
            with self._lock:
                self._open.discard(accepted)
            accepted.close()
            self._slots.release()


class CommandServer(CallServer):
    """Serves commands of users."""

    def __init__(self, listen: str, context: ssl.SSLContext, calls: Calls, identities: Identities) -> None:
        self._calls, self._identities = calls, identities
        super().__init__(listen, context, self._answer)

    def _answer(self, body: bytes) -> bytes:
        """The answer to one call. It raises nothing: an error is an answer."""
        try:
            call = msgspec.msgpack.decode(body, type=_Call)
            user = self._identities.user(call.ticket, call.secret)
            return msgspec.msgpack.encode(
                {"value": self._calls.carry_out(user, call.call, call.more, call.id)}
            )
        except msgspec.DecodeError as error:
            told: dict[str, Any] = {"kind": "BadInput", "problem": f"the call cannot be read: {error}"}
        except CallForbidden as error:
            told = {"kind": error.kind, "problem": str(error), "remedy": error.remedy}
        except KubeError as error:
            told = {"kind": "CannotRun", "problem": f"the API server does not answer the controller: {error.problem}",
                    "field": error.field, "remedy": error.remedy}  # fmt: skip
        except (UnidleError, NotThere) as error:
            told = told_of(error)
        except (KeyError, TypeError, ValueError) as error:
            told = {"kind": "BadInput", "problem": f"the call cannot be read: {error!r}"}
        return msgspec.msgpack.encode({"error": told})

    def close(self) -> None:
        super().close()
        self._calls.close()


class _Call(msgspec.Struct, frozen=True):
    v: int
    ticket: str
    secret: str
    call: str
    id: str = ""
    more: dict[str, Any] = msgspec.field(name="with", default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    """One connection. ``server`` is the :class:`CallServer`."""

    protocol_version = "HTTP/1.1"
    server_version = f"unidle-commands/{VERSION}"
    timeout = _IDLE_S

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path.partition("?")[0] != "/v1":
            self._send(HTTPStatus.NOT_FOUND, b"")
        elif not length.isdecimal() or int(length) > _MOST_BODY:
            self.close_connection = True
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"")
        else:
            gateway: Any = self.server
            self._send(HTTPStatus.OK, gateway.answer(self.rfile.read(int(length))))

    def do_GET(self) -> None:
        """For probes of the kubelet."""
        self._send(HTTPStatus.OK if self.path == "/healthz" else HTTPStatus.NOT_FOUND, b"")

    def _send(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/msgpack")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """No lines: who called what is in the API server's audit log."""
