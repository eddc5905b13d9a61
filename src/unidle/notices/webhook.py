"""Posting a notice: one request, signed as Standard Webhooks (https://www.standardwebhooks.com) has it.

``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over ``ID.TIMESTAMP.BODY``. Redirects are not
followed, certificates are verified, and neither errors nor answers are repeated with what may be secret.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from unidle import __version__
from unidle.notices.send_queue import Delivery

TIMEOUT_S: Final = 10.0
"""Of each step of a request (connect, send, wait for the answer)."""
WHOLE_S: Final = 20.0
"""Of a request as a whole, however the receiver dribbles."""
_AGAIN: Final = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where to post. ``secret`` is empty for an unsigned webhook."""

    url: str = field(repr=False)
    secret: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S
    whole_s: float = WHOLE_S
    tls: ssl.SSLContext | None = field(default=None, repr=False)


def secret_bytes(text: str) -> bytes:
    """The key in ``text``: base64 after ``whsec_``, else the text itself. Errors: ValueError."""
    if not text.startswith("whsec_"):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ValueError("is not base64 after whsec_") from None


def signature(secret: bytes, notice_id: str, time_s: int, body: bytes) -> str:
    """The value of ``webhook-signature``."""
    mac = hmac.new(secret, f"{notice_id}.{time_s}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def post(to: WebhookTarget, notice_id: str, body: bytes, now_s: float) -> Delivery:
    """One try. ``now_s``: seconds since the Unix epoch."""
    time_s = int(now_s)
    headers = {
        **to.headers,
        "Content-Type": "application/json",
        "User-Agent": f"unidle/{__version__}",
        "webhook-id": notice_id,
        "webhook-timestamp": str(time_s),
    }
    if to.secret:
        headers["webhook-signature"] = signature(to.secret, notice_id, time_s, body)
    try:
        status, retry_after = _exchange(to, body, headers)
    except (OSError, http.client.HTTPException, UnicodeError, ValueError) as error:
        return Delivery("again", _what_failed(error))
    if 200 <= status < 300:
        return Delivery("done")
    if status < 300 or status >= 500 or status in _AGAIN:
        return Delivery("again", f"answered {status}", _seconds(retry_after, now_s))
    if status < 400:
        return Delivery("again", f"answered {status}: redirects are not followed")
    return Delivery("refused", f"answered {status}")


def _exchange(to: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
    """Status and ``Retry-After`` of the answer; its body is not read."""
    parts = urlsplit(to.url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        tls = to.tls or ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, parts.port, timeout=to.timeout_s, context=tls)
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=to.timeout_s)
    late = threading.Event()
    watch = threading.Timer(to.whole_s, _cut, (connection, late))
    watch.daemon = True
    watch.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        if late.is_set():  # what came of it is cut off
            raise TimeoutError
        return answer.status, answer.headers.get("Retry-After", "")
    except (OSError, http.client.HTTPException):
        if late.is_set():
            raise TimeoutError from None
        raise
    finally:
        watch.cancel()
        connection.close()


def _cut(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    late.set()
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _what_failed(error: Exception) -> str:
    """Without the address, which may be secret."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or 'unknown'}"
    if isinstance(error, socket.gaierror):
        return "its host is not known"
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return f"does not speak HTTP ({type(error).__name__})"


def _seconds(retry_after: str, now_s: float) -> float:
    """``Retry-After`` is seconds or a date; 0 where it is neither."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max((moment - datetime.fromtimestamp(now_s, UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError, IndexError, OverflowError):  # a year of many digits does not fit
        return 0.0
