"""One connection to a hub: TLS over a socket that never blocks, frames in and out."""

from __future__ import annotations

import errno
import select
import socket
import ssl

from unidle import wire

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from typing import Any

SERVER_NAME = "unidle-hub"  # in the certificates of hubs that have their own authority
READ_BYTES = 64 * 1024
FEED_BELOW = 256 * 1024  # of unsent bytes: above, no more marks are read for it
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)


class LinkEnded(Exception):
    """The connection is over; the text is the reason. ``wrong_name``: the certificate is of another name."""

    def __init__(self, why: str, *, wrong_name: bool = False) -> None:
        super().__init__(why)
        self.wrong_name = wrong_name


def tls_context(authority: str) -> ssl.SSLContext:
    """TLS 1.3 with a hub whose certificate the authority has signed, or one of the system's where it is empty.

    Errors: ValueError for text that is no PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and name
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        if authority:
            context.load_verify_locations(cadata=authority)
        else:
            context.load_default_certs()
    except ssl.SSLError as error:
        raise ValueError(f"the authority's certificate cannot be read: {error.reason}") from None
    return context


class HubLink:
    """From the first packet to the last. Nothing here blocks; all errors are :class:`LinkEnded`."""

    def __init__(self, context: ssl.SSLContext, address: tuple[Any, ...], family: int, name: str) -> None:
        self._context, self._name = context, name
        self._unframer = wire.Unframer(wire.FRAME_BYTES)
        self._out = bytearray()
        self._wants = select.POLLOUT
        self._tls: ssl.SSLSocket | None = None
        self.is_open = False
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = self._socket.connect_ex(address)
        if number not in _IN_PROGRESS:
            self._socket.close()
            raise LinkEnded(f"no connection: {errno.errorcode.get(number, number)}")

    @property
    def fd(self) -> int:
        return (self._tls or self._socket).fileno()

    @property
    def wants(self) -> int:
        """What to poll for."""
        return self._wants | (select.POLLOUT if self.is_open and self._out else 0)

    @property
    def unsent(self) -> int:
        """Bytes that the network has not taken."""
        return len(self._out)

    @property
    def local_address(self) -> str:
        """This machine's address on the way to the hub."""
        return str(self._socket.getsockname()[0] if self._tls is None else self._tls.getsockname()[0])

    def send(self, frame: bytes) -> None:
        """Send a frame, as far as the network takes it now; the rest waits."""
        if len(self._out) + len(frame) > wire.UNREAD_BYTES:
            raise LinkEnded("the hub does not read")
        self._out += frame
        if self.is_open:
            self._flush()

    def turn(self) -> list[dict[str, Any]]:
        """Do what can be done now; the frames that have come."""
        try:
            if self._tls is None:
                self._connected()
            if not self.is_open and not self._shake():
                return []
            self._flush()
            return self._receive()
        except wire.Malformed as error:
            raise LinkEnded(f"the hub sent what is no frame: {error}") from None
        except ssl.SSLCertVerificationError as error:
            wrong = error.verify_code == 62  # X509_V_ERR_HOSTNAME_MISMATCH
            raise LinkEnded(f"the hub's certificate: {error.verify_message}", wrong_name=wrong) from None
        except OSError as error:
            raise LinkEnded(_words(error)) from None

    def _connected(self) -> None:
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise LinkEnded(f"no connection: {errno.errorcode.get(number, number)}")
        self._tls = self._context.wrap_socket(
            self._socket,
            server_hostname=self._name.encode(),  # a text would be encoded with tables of a megabyte
            do_handshake_on_connect=False,
        )
        self._tls.setblocking(False)

    def _shake(self) -> bool:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._wants = select.POLLIN
            return False
        except ssl.SSLWantWriteError:
            self._wants = select.POLLIN | select.POLLOUT
            return False
        self.is_open, self._wants = True, select.POLLIN
        return True

    def _flush(self) -> None:
        assert self._tls is not None
        while self._out:
            part = bytes(memoryview(self._out)[:READ_BYTES])
            try:
                count = self._tls.send(part)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as error:
                raise LinkEnded(_words(error)) from None
            del self._out[:count]

    def _receive(self) -> list[dict[str, Any]]:
        """At most about a megabyte of frames: the rest waits for the next turn, which comes at once."""
        assert self._tls is not None
        found: list[dict[str, Any]] = []
        for _ in range(16):
            try:
                data = self._tls.recv(READ_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not data:
                if found:
                    break  # its last words first: the next turn finds the end again
                raise LinkEnded("the hub closed the connection")
            found += [wire.decode(payload) for payload in self._unframer.feed(data)]
        return found

    @property
    def has_more(self) -> bool:
        """Whether bytes wait in TLS, which poll does not show."""
        return self._tls is not None and self.is_open and self._tls.pending() > 0

    def close(self) -> None:
        (self._tls or self._socket).close()


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error.strerror or error}"
    return error.strerror or str(error)
