"""One request to ``/chat/completions``, with retries. Redirects are not followed: the key goes to one place."""

from __future__ import annotations

import http.client
import json
import math
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from unidle.errors import UnidleError
from unidle.tune.endpoint.body import BrokenAnswer, error_text, pieces, text_of_events, text_of_json
from unidle.tune.endpoint.settings import KEY, MODEL, URL, ModelEndpoint

_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_REMEDY: Final = {
    401: f"check {KEY}", 403: f"check {KEY}", 404: f"check {URL} and {MODEL}", 400: f"check {MODEL}", 422: f"check {MODEL}",
    413: "the endpoint takes less text",
}  # fmt: skip


class EndpointFailed(UnidleError):
    """The endpoint gave no answer that can be used. The message has no key."""


@dataclass(frozen=True, slots=True)
class Patience:
    """``tries`` of one request; ``idle_s`` without a byte; ``total_s`` for all tries, waits included."""

    tries: int = 5
    idle_s: float = 60.0
    total_s: float = 300.0
    first_wait_s: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelClient:
    """Sends requests to one endpoint. ``wait`` and ``clock`` are those of the machine."""

    endpoint: ModelEndpoint
    patience: Patience = Patience()
    wait: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def ask(self, messages: Sequence[dict[str, str]]) -> str:
        """The text that answers ``messages``. Errors: :class:`EndpointFailed`."""
        body = json.dumps({"model": self.endpoint.model, "messages": list(messages), "stream": True}).encode()
        ends = self.clock() + self.patience.total_s
        for number in range(1, self.patience.tries + 1):
            try:
                return self._once(body, ends)
            except _Again as failed:
                pause = self.patience.first_wait_s * 2 ** (number - 1)
                pause = pause if failed.after_s is None else failed.after_s
                left = ends - self.clock()
                if number == self.patience.tries or pause > left:
                    raise self._failed(str(failed), number, pause if pause > left else None) from failed
                self.wait(pause)
        raise AssertionError("tries is at least 1")

    def _failed(self, problem: str, tries: int, pause_s: float | None = None) -> EndpointFailed:
        more = f" after {tries} tries" if tries > 1 else ""
        if pause_s is not None:
            more += f"; the next one is due in {pause_s:.0f} s, and {self.patience.total_s:.0f} s are the limit of a request"
        return EndpointFailed(self.endpoint.hide_key(problem) + more, field=URL, value=self.endpoint.url)

    def _once(self, body: bytes, ends: float) -> str:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        request = urllib.request.Request(f"{self.endpoint.url}/chat/completions", body, headers)  # noqa: S310
        if self.endpoint.key:  # not sent on to another host
            request.add_unredirected_header("Authorization", f"Bearer {self.endpoint.key}")
        idle = max(0.001, min(self.patience.idle_s, ends - self.clock()))
        try:
            with _opener().open(request, timeout=idle) as answer:
                return self._text(answer, ends)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from error
        except BrokenAnswer as error:
            if error.again:
                raise _Again(f"the answer {error}") from error
            raise self._failed(f"the answer {error}", 1) from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, ssl.SSLError) and not isinstance(reason, ssl.SSLEOFError):
                raise self._failed(f"TLS failed: {_plain(reason)}", 1) from error
            if isinstance(reason, TimeoutError):
                raise _Again("no answer in time") from error
            raise _Again(f"the connection failed: {_plain(reason)}") from error

    def _text(self, answer: http.client.HTTPResponse, ends: float) -> str:
        parts = pieces(answer, lambda: ends - self.clock())
        if answer.headers.get_content_type() == "text/event-stream":
            return text_of_events(parts)
        raw = b"".join(parts)
        if answer.length:  # read1 does not report a body that is cut
            raise _Again("the answer ends in the middle")
        return text_of_json(raw)

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        try:
            raw = error.read(20_000)
        except (OSError, http.client.HTTPException):
            raw = b""
        said = _said(raw)
        problem = f"answers {error.code}{f': {said}' if said else ''}"
        if error.code in _AGAIN:
            return _Again(problem, _retry_after(error.headers.get("Retry-After")))
        if 300 <= error.code < 400:
            problem = f"answers {error.code}, a redirect; redirects are not followed"
        failed = self._failed(problem, 1)
        return EndpointFailed(
            failed.problem,
            field=URL,
            value=self.endpoint.url,
            remedy=_REMEDY.get(error.code, "check the address"),
        )


class _Again(Exception):
    """A try that failed, where another one may succeed. ``after_s``: when the server takes it."""

    def __init__(self, problem: str, after_s: float | None = None) -> None:
        self.after_s = after_s
        super().__init__(problem)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """None: the redirect is the answer."""


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NoRedirect)


def _said(raw: bytes) -> str:
    try:
        return error_text(json.loads(raw))
    except (ValueError, RecursionError):
        return error_text(raw.decode("utf-8", "replace"))


def _plain(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return reason.verify_message
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return " ".join(str(reason).split())[:200] or type(reason).__name__


def _retry_after(value: str | None) -> float | None:
    """Seconds, or a date; None where it is neither."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
