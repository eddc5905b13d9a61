"""Runs a command in a container through the API server: its streams in the frames of a WebSocket, both ways at once.

The protocol is ``v5.channel.k8s.io`` (Kubernetes 1.30 and newer): the first byte of each message names a stream.
"""

from __future__ import annotations

import base64
import os
import select
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unidle.kube.client import ApiClient
from unidle.kube.objects import PODS
from unidle.kube.protocol import ApiRequest, KubeError

PROTOCOL: Final = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_AGREE_S: Final = 30.0
_CHUNK: Final = 32 << 10
_MOST: Final = 1 << 24  # bytes of one frame
_WAIT_S: Final = 0.5
_TEXT, _BINARY, _CLOSING, _PING, _PONG = 1, 2, 8, 9, 10


@dataclass(frozen=True, slots=True)
class ExecOrder:
    """``words`` run in a container of a pod. ``stdin``: a descriptor that is copied to it; None: it has no input."""

    namespace: str
    pod: str
    container: str
    words: tuple[str, ...]
    stdin: int | None = None
    tty: bool = False


class ExecStream:
    """One command, from its start to its end. ``size``: rows and columns of the terminal, asked whenever something came."""

    def __init__(
        self, client: ApiClient, order: ExecOrder, size: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        self._client, self._order, self._size = client, order, size
        self._shown: tuple[int, int] | None = None
        self._bytes = b""  # that came, and are no whole frame yet
        self._message = b""  # of frames that are continued
        self._status: dict[str, Any] | None = None
        self._socket: Any = None
        self._ended = False

    def run(self, write: Callable[[int, bytes], None]) -> int:
        """The exit code; ``write(stream, data)`` has the output. Errors: KubeError."""
        order = self._order
        path = PODS.path(order.namespace, order.pod, "exec")
        query = [("container", order.container), ("stdout", "true"), ("stderr", str(not order.tty).lower()),
                 ("stdin", str(order.stdin is not None).lower()), ("tty", str(order.tty).lower()),
                 *(("command", word) for word in order.words)]  # fmt: skip
        target = f"pods/exec {order.namespace}/{order.pod}"
        request = ApiRequest("create", "GET", path, target, _Repeated(query))
        key = base64.b64encode(os.urandom(16)).decode()
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Accept": "*/*",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": PROTOCOL,
        }
        with self._client.upgraded(request, headers, _AGREE_S) as upgraded:
            if upgraded.headers.get("Sec-WebSocket-Protocol") != PROTOCOL:
                raise KubeError(
                    f"the server does not speak {PROTOCOL}", verb="create", target=target, reason="Unsupported",
                    remedy="use Kubernetes 1.30 or newer",
                )  # fmt: skip
            self._socket, self._bytes = upgraded.socket, upgraded.rest
            self._socket.setblocking(True)
            try:
                self._copy(write)
            except OSError as error:
                raise KubeError(
                    f"the connection broke: {error}", verb="create", target=target, reason="Unreachable",
                    remedy="the command may still run",
                ) from None  # fmt: skip
        return self._code(target)

    def _copy(self, write: Callable[[int, bytes], None]) -> None:
        stdin = self._order.stdin
        while not self._is_over(write):
            self._resize()
            fds = [self._socket] if stdin is None else [self._socket, stdin]
            pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
            ready = [self._socket] if pending else select.select(fds, [], [], _WAIT_S)[0]
            if stdin is not None and stdin in ready:
                data = os.read(stdin, _CHUNK)
                if data:
                    self._send(bytes([STDIN]) + data)
                else:
                    self._send(bytes([CLOSE, STDIN]))
                    stdin = None
            if self._socket in ready:
                found = self._socket.recv(_CHUNK)
                self._bytes += found
                self._ended = not found

    def _is_over(self, write: Callable[[int, bytes], None]) -> bool:
        self._take(write)
        return self._ended

    def _take(self, write: Callable[[int, bytes], None]) -> None:
        """Whole frames that have come."""
        while (frame := self._frame()) is not None:
            kind, final, data = frame
            if kind == _CLOSING:
                self._ended = True
            elif kind == _PING:
                self._send(data, _PONG)
            elif kind in (0, _TEXT, _BINARY):
                self._message += data
                if final:
                    message, self._message = self._message, b""
                    self._hear(message, write)

    def _hear(self, message: bytes, write: Callable[[int, bytes], None]) -> None:
        if not message:
            return
        if message[0] in (STDOUT, STDERR) and len(message) > 1:
            write(message[0], message[1:])
        elif message[0] == STATUS:
            self._status = msgspec.json.decode(message[1:])

    def _frame(self) -> tuple[int, bool, bytes] | None:
        have = self._bytes
        if len(have) < 2:
            return None
        length, at = have[1] & 0x7F, 2
        if length >= 126:
            size = 2 if length == 126 else 8
            if len(have) < at + size:
                return None
            length, at = int.from_bytes(have[at : at + size], "big"), at + size
        if length > _MOST:
            raise OSError("a frame is too long")
        if len(have) < at + length:
            return None
        self._bytes = have[at + length :]
        return have[0] & 0x0F, bool(have[0] & 0x80), have[at : at + length]

    def _send(self, data: bytes, kind: int = _BINARY) -> None:
        """One frame; what clients send is masked."""
        length = len(data)
        head = bytes([0x80 | kind])
        if length < 126:
            head += bytes([0x80 | length])
        else:
            head += bytes([0x80 | 126]) + struct.pack(">H", length)
        mask = os.urandom(4)
        pad = (mask * (length // 4 + 1))[:length]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(length, "big")
        self._socket.sendall(head + mask + masked)

    def _resize(self) -> None:
        if self._size is None or self._size() == self._shown:
            return
        self._shown = self._size()
        rows, columns = self._shown
        self._send(bytes([RESIZE]) + msgspec.json.encode({"Width": columns, "Height": rows}))

    def _code(self, target: str) -> int:
        status = self._status
        if status is None:
            raise KubeError(
                "the connection ended before the command did", verb="create", target=target, reason="Unreachable",
                remedy="see whether the pod is still there",
            )  # fmt: skip
        if status.get("status") == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or ()
        code = next((one.get("message") for one in causes if one.get("reason") == "ExitCode"), None)
        if code is not None:
            return int(code)
        raise KubeError(
            str(status.get("message", "the command did not start")), verb="create", target=target,
            reason=str(status.get("reason", "")),
        )  # fmt: skip


class _Repeated(dict[str, str]):
    """A query in which a name may come again."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs
