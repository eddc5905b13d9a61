"""One TLS connection with frames in both directions, without blocking: used by the hub and by its clients."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Final

from unidle import wire

_RECORD: Final = 16 * 1024  # the most of one TLS record: a read of this size leaves nothing decrypted behind


def read_buffer() -> memoryview:
    """What :meth:`FrameStream.receive` reads into: one for all connections of a thread."""
    return memoryview(bytearray(_RECORD))


class StreamLost(Exception):
    """The connection is over. The text is why, and may have bytes of the other side in it."""


class FrameStream:
    """Frames over a non-blocking TLS socket. Not for more than one thread.

    Memory: what is not sent yet, one frame that is not whole yet, and 15 kB of OpenSSL and the kernel. Reads use the
    buffer of the thread, so that 10,000 idle connections have none.
    """

    __slots__ = ("_finished", "_out", "_retry", "_unframer", "ready", "sock")

    def __init__(self, sock: ssl.SSLSocket, limit: int = wire.HELLO_BYTES) -> None:
        self.sock = sock
        self.ready = False  # TLS is established
        self._finished = False
        self._unframer = wire.Unframer(limit)
        self._out: bytearray | None = None
        self._retry: bytes | None = None  # what OpenSSL has begun to write: it has to be given again as it is

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        return len(self._out or b"") + len(self._retry or b"")

    @property
    def waits(self) -> bool:
        """Whether bytes wait to be sent."""
        return self._retry is not None or bool(self._out)

    @property
    def held(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return self._unframer.held

    def allow(self, limit: int) -> None:
        """The bound of the next frames."""
        self._unframer.limit = limit

    def handshake(self) -> int:
        """Continue TLS. 0 when it is done, else 1 if it waits for bytes, 2 if it waits for room. Errors: StreamLost."""
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            return 1
        except ssl.SSLWantWriteError:
            return 2
        except (OSError, ValueError) as error:
            raise StreamLost(_reason(error)) from None
        self.ready = True
        return 0

    def receive(self, view: memoryview) -> bytes | None:
        """What one read gives; empty at the end of the stream, None if nothing is there. Errors: StreamLost."""
        try:
            # not `recv_into`, which is a third slower; without TLS, after `finish`, only that one works
            count = self.sock.recv_into(view) if self._finished else int(self.sock.read(_RECORD, view))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except (OSError, ValueError) as error:
            raise StreamLost(_reason(error)) from None
        return bytes(view[:count])

    def frames(self, data: bytes) -> list[bytes]:
        """The payloads that are whole with these bytes. Errors: wire.Malformed."""
        return self._unframer.feed(data)

    def taken(self, view: memoryview) -> Sequence[bytes]:
        """The payloads that are whole after one read. Errors: StreamLost, also at the end of the stream; wire.Malformed."""
        try:
            count = int(self.sock.read(_RECORD, view))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return ()
        except (OSError, ValueError) as error:
            raise StreamLost(_reason(error)) from None
        if not count:
            raise StreamLost("the connection ended")
        size = wire.HEADER.size
        if count > size and not self._unframer.held:  # the usual case: one whole frame
            (length,) = wire.HEADER.unpack_from(view)
            if length == count - size <= self._unframer.limit:
                return (bytes(view[size:count]),)
        return self._unframer.feed(bytes(view[:count]))

    def frame(self, data: bytes = b"") -> bytes | None:
        """The next payload. Errors: wire.Malformed."""
        return self._unframer.one(data)

    def send(self, data: bytes) -> bool:
        """Queue bytes and send what can be sent; whether all is sent. Errors: StreamLost."""
        if self._retry is None and not self._out and len(data) <= _RECORD:
            self._retry = data  # the usual case: nothing waits
        else:
            if self._out is None:
                self._out = bytearray()
            self._out += data
        return self.flush()

    def flush(self) -> bool:
        """Send what can be sent; whether all is sent. Errors: StreamLost."""
        while True:
            if self._retry is None:
                if not self._out:
                    self._out = None
                    return True
                self._retry = bytes(self._out[:_RECORD])
                del self._out[:_RECORD]
            try:
                count = self.sock.write(self._retry)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            except (OSError, ValueError) as error:
                raise StreamLost(_reason(error)) from None
            self._retry = self._retry[count:] or None

    def finish(self) -> None:
        """Nothing more is sent, and what comes is not decrypted."""
        self._finished = True
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self.sock.close()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
