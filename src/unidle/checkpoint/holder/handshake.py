"""How a connection to a holder begins: both sides prove that they have the holder's token, which itself is never sent.

    calls    -> {version, name, encrypted, nonce}
    listens  -> {nonce, proof}
    calls    -> {proof}
                         between hosts: TLS without certificates from here on, and then, through it
    calls    -> {proof}  of these messages and of this TLS connection: a relay in between is detected
    listens  -> {proof}

A proof is the HMAC-SHA-256 of the messages before it under the token. Until then at most 4 KiB are read, in 5 s all together.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import struct
import time
from typing import Any, Final

GREETING_S: Final = 5.0
_MOST_BYTES: Final = 4096
_HEAD: Final = struct.Struct("!4sH")
_MAGIC: Final = b"UDLC"
_VERSION: Final = 1
# Anonymous key exchange: who it is was proved by the token. TLS 1.3 has none, and Python has no pre-shared keys before 3.13.
_CIPHER: Final = "ADH-AES256-GCM-SHA384:@SECLEVEL=0"
# The group ffdhe3072 of RFC 7919.
_GROUP: Final = """-----BEGIN DH PARAMETERS-----
MIIBiAKCAYEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEfz9zeNVs7ZRkDW7w09N75nAI4YbRvydbmyQd62R0mkff3
7lmMsPrBhtkcrv4TCYUTknC0EwyTvEN5RPT9RFLi103TZPLiHnH1S/9croKrnJ32
nuhtK8UiNjoNq8Uhl5sN6todv5pC1cRITgq80Gv6U93vPBsg7j/VnXwl5B0rZsYu
N///////////AgEC
-----END DH PARAMETERS-----
"""


class PeerRefused(Exception):
    """The other side is not who it should be, or does not speak this protocol."""


def ask(link: socket.socket, token: str, name: str, *, encrypted: bool) -> socket.socket:
    """The side that calls; the connection to use from here on. Raises :class:`PeerRefused`, OSError."""
    end_s, left = time.monotonic() + GREETING_S, [_MOST_BYTES]
    first = {"version": _VERSION, "name": name, "encrypted": encrypted, "nonce": secrets.token_hex(16)}
    _put(link, first)
    answer = _get(link, end_s, left)
    said = [first, str(answer.get("nonce"))]
    _compare(answer, token, b"listens", said)
    _put(link, {"proof": _proof(token, b"calls", said)})
    if not encrypted:
        _compare(_get(link, end_s, left), token, b"accepts", said)
        return link
    link.settimeout(_left_s(end_s))
    inner = _context(server=False).wrap_socket(link)
    try:
        said.append(_binding(inner))
        _put(inner, {"proof": _proof(token, b"calls", said)})
        _compare(_get(inner, end_s, [_MOST_BYTES]), token, b"accepts", said)
    except BaseException:
        inner.close()  # the socket is its own now
        raise
    return inner


def answer(link: socket.socket, token: str, name: str, *, encrypted: bool) -> socket.socket:
    """The side that listens. Raises :class:`PeerRefused`, OSError."""
    end_s, left = time.monotonic() + GREETING_S, [_MOST_BYTES]
    first = _get(link, end_s, left)
    if first.get("version") != _VERSION or first.get("name") != name or first.get("encrypted") != encrypted:
        raise PeerRefused("it looks for another holder, or is of another version of unidle")
    said = [first, secrets.token_hex(16)]
    _put(link, {"nonce": said[1], "proof": _proof(token, b"listens", said)})
    _compare(_get(link, end_s, left), token, b"calls", said)
    if not encrypted:
        _put(link, {"proof": _proof(token, b"accepts", said)})
        return link
    link.settimeout(_left_s(end_s))
    inner = _context(server=True).wrap_socket(link, server_side=True)
    try:
        said.append(_binding(inner))
        _compare(_get(inner, end_s, [_MOST_BYTES]), token, b"calls", said)
        _put(inner, {"proof": _proof(token, b"accepts", said)})
    except BaseException:
        inner.close()
        raise
    return inner


@functools.cache
def _context(*, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    if not server:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_ciphers(_CIPHER)
    if server:
        fd = os.memfd_create("ffdhe3072")
        try:
            os.write(fd, _GROUP.encode())
            context.load_dh_params(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
    return context


def _binding(link: ssl.SSLSocket) -> str:
    """What is the same on both ends of one TLS connection, and on no other."""
    found = link.get_channel_binding("tls-unique")
    if not found:
        raise PeerRefused("the encrypted connection has no binding")
    return found.hex()


def _proof(token: str, role: bytes, said: list[Any]) -> str:
    text = json.dumps(said, sort_keys=True).encode()
    return hmac.new(token.encode(), role + b"\0" + text, hashlib.sha256).hexdigest()


def _compare(message: dict[str, Any], token: str, role: bytes, said: list[Any]) -> None:
    found = str(message.get("proof", "")).encode(errors="replace")
    if not hmac.compare_digest(found, _proof(token, role, said).encode()):
        raise PeerRefused("it does not have the token of this holder")


def _put(link: socket.socket, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    link.sendall(_HEAD.pack(_MAGIC, len(text)) + text)


def _get(link: socket.socket, end_s: float, left: list[int]) -> dict[str, Any]:
    magic, length = _HEAD.unpack(_exactly(link, _HEAD.size, end_s))
    left[0] -= _HEAD.size + length
    if magic != _MAGIC or left[0] < 0:
        raise PeerRefused("it does not speak the protocol of holders")
    try:
        found = json.loads(_exactly(link, length, end_s))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PeerRefused("it does not speak the protocol of holders")
    return found


def _exactly(link: socket.socket, count: int, end_s: float) -> bytes:
    got = b""
    while len(got) < count:
        link.settimeout(_left_s(end_s))  # a byte now and then does not hold a thread
        part = link.recv(count - len(got))
        if not part:
            raise ConnectionResetError("it closed the connection within the greeting")
        got += part
    return got


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the greeting took too long")
    return left_s
