"""One call of gRPC over a unix socket, such as those of a kubelet: a request without fields, and one answer.

HTTP/2 (RFC 9113) as far as that needs it: headers are sent as literals, and those of the answer are not decoded. So a call that
the server refuses has no text of why. The standard library alone: an agent at rest has no room for a library of gRPC.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Final

ANSWER_BYTES: Final = 16 << 20
"""The longest answer, which is what clients of kubelets allow."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
_FRAME: Final = 16384  # the longest one that a server may send
_STREAM: Final = 1


class UnaryCallFailed(OSError):
    """The server answered, but not as agreed, or not with an answer."""


def unary_call(path: str, method: str, timeout_s: float) -> bytes:
    """The answer (a message of protobuf) to ``method``, such as ``/v1.PodResourcesLister/List``, of the server at the socket ``path``.

    Errors: OSError, also :class:`UnaryCallFailed` and TimeoutError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        call = _Call(connection, time.monotonic() + timeout_s)
        connection.settimeout(timeout_s)
        connection.connect(path)
        connection.sendall(_request(method))
        return call.answer()


def _request(method: str) -> bytes:
    settings = struct.pack(">HIHIHI", 1, 0, 2, 0, 4, ANSWER_BYTES + 5)  # no table of headers, no push, window
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    headers = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, 0, 0, settings),
            _frame(_WINDOW, 0, 0, struct.pack(">I", ANSWER_BYTES)),  # of the whole connection
            _frame(_HEADERS, _END_HEADERS, _STREAM, headers),
            _frame(_DATA, _END_STREAM, _STREAM, b"\0" + struct.pack(">I", 0)),
        )
    )


def _text(text: str) -> bytes:
    """A string of HPACK as it is."""
    content = text.encode()
    if len(content) > 126:
        raise ValueError(f"is too long for a header: {text}")
    return bytes((len(content),)) + content


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


class _Call:
    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection, self._until_s = connection, until_s
        self._message = bytearray()

    def answer(self) -> bytes:
        for kind, flags, stream, content in self._frames():
            if kind == _SETTINGS and not flags & _ACK:
                self._connection.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._connection.sendall(_frame(_PING, _ACK, 0, content))
            elif kind == _GOAWAY or (kind == _RESET and stream == _STREAM):
                raise UnaryCallFailed("the server ended the call")
            elif kind == _DATA and stream == _STREAM:
                self._take(_unpadded(content) if flags & _PADDED else content)
            if kind in (_DATA, _HEADERS) and stream == _STREAM and flags & _END_STREAM:
                break
        return self._whole()

    def _take(self, content: bytes) -> None:
        self._message += content
        if len(self._message) > ANSWER_BYTES:
            raise UnaryCallFailed(f"the answer is above {ANSWER_BYTES >> 20} MiB")

    def _whole(self) -> bytes:
        if not self._message:
            raise UnaryCallFailed("the server refused the call")
        if len(self._message) < 5 or self._message[0] != 0:
            raise UnaryCallFailed("the answer is cut short, or compressed")
        [length] = struct.unpack_from(">I", self._message, 1)
        if length != len(self._message) - 5:
            raise UnaryCallFailed("the answer is cut short")
        return bytes(self._message[5:])

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while True:
            head = self._read(9)
            length = int.from_bytes(head[:3], "big")
            if length > _FRAME:
                raise UnaryCallFailed("a frame is above the length that was agreed: no server of HTTP/2")
            kind, flags, stream = struct.unpack(">BBI", head[3:])
            yield kind, flags, stream & 0x7FFF_FFFF, self._read(length)

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the server did not answer in time")
            self._connection.settimeout(left_s)
            part = self._connection.recv(count - len(found))
            if not part:
                raise UnaryCallFailed("the server closed the connection")
            found += part
        return bytes(found)


def _unpadded(content: bytes) -> bytes:
    if not content or content[0] >= len(content):
        raise UnaryCallFailed("a frame is not as agreed")
    return content[1 : len(content) - content[0]]
