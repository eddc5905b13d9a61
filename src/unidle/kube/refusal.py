"""The answer of a server that refuses, as one error that names the request, the reason and what to do."""

from __future__ import annotations

import http.client
import ssl
from typing import Final

import msgspec

from unidle.kube.protocol import ApiRequest, KubeError

_REASONS: Final = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
    413: "RequestEntityTooLarge", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
    503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
_SHOWN: Final = 600  # characters of a message


class _Cause(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[_Cause, ...] = ()
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The API's object for what went wrong."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


def refusal(request: ApiRequest, status: int, body: bytes, retry_after: str | None, who: str) -> KubeError:
    """The error of an answer with HTTP status ``status``. ``who``: where the credentials are from."""
    try:
        found = msgspec.json.decode(body, type=Status)
    except msgspec.DecodeError:
        found = Status()
    if found.kind != "Status":  # a proxy answered, or a path that the server does not serve
        text = " ".join(body[:_SHOWN].decode(errors="replace").split())
        found = Status(message=text or f"HTTP status {status}")
    return of_status(request, found, status, retry_after, who)


def of_status(
    request: ApiRequest, found: Status, status: int, retry_after: str | None = None, who: str = ""
) -> KubeError:
    """The error of a ``Status``, which may also come in a watch."""
    status = status or found.code
    reason = found.reason or _REASONS.get(status, f"HTTP {status}")
    details = found.details or _Details()
    wait = _seconds(retry_after) if retry_after else float(details.retry_after_seconds) or None
    return KubeError(
        printable(" ".join(found.message.split())[:_SHOWN]) or reason,
        verb=request.verb,
        target=request.target,
        status=status,
        reason=reason,
        causes=[(cause.reason, cause.field, cause.message) for cause in details.causes],
        retry_after_s=wait,
        remedy=_remedy(request, reason, who, served=found.kind == "Status"),
    )


def unreachable(request: ApiRequest, error: Exception, server: str, source: str) -> KubeError:
    """The error of a request without an answer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return KubeError(
            f"the server's certificate is not trusted: {error.verify_message}",
            verb=request.verb,
            target=request.target,
            reason="Untrusted",
            remedy=f"check certificate-authority and tls-server-name of {source}",
        )
    if isinstance(error, http.client.IncompleteRead):
        return KubeError(
            printable(f"the answer ends early: {error}"),
            verb=request.verb,
            target=request.target,
            reason="CutShort",
            remedy=f"try again; see whether {server} was restarted",
        )
    timed_out = isinstance(error, TimeoutError)
    what = (
        "no answer in time"
        if timed_out
        else f"the API server cannot be reached: {error or type(error).__name__}"
    )
    return KubeError(
        printable(what),
        verb=request.verb,
        target=request.target,
        reason="TimedOut" if timed_out else "Unreachable",
        remedy=f"check that {server} answers ({source})",
    )


def printable(text: str) -> str:
    """``text`` without characters that a terminal acts on: what a server answers is shown to users."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def _seconds(text: str) -> float | None:
    """A ``Retry-After`` of seconds; the API server never sends a date."""
    return float(text) if text.isdecimal() else None


def _remedy(request: ApiRequest, reason: str, who: str, *, served: bool) -> str:
    if reason == "NotFound" and not served:
        return "the server does not serve this kind: install its definition, or use a newer Kubernetes"
    return {
        "Unauthorized": f"check the credentials of {who}",
        "Forbidden": f"have {request.verb} granted, or look at what refused it: quota, admission or policy",
        "NotFound": "check its name and namespace",
        "AlreadyExists": "delete the other one, or use another name",
        "Conflict": "it was changed or replaced meanwhile: read it again",
        "Expired": "list again",
        "Invalid": "correct the fields",
        "BadRequest": "correct the request",
    }.get(reason, "try again later")
