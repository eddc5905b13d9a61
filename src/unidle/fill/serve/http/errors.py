"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from typing import Final

import msgspec

_KINDS: Final = {
    401: "authentication_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class ApiError(Exception):
    """An answer of ``status``. ``param``: the field that is wrong; ``code``: a word for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> bytes:
        kind = _KINDS.get(self.status, "invalid_request_error")
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """An invalid request."""
    return ApiError(400, message, param=param, code=code)


def busy(message: str) -> ApiError:
    return ApiError(429, message, code="queue_full")


def unavailable(message: str) -> ApiError:
    return ApiError(503, message, code="unavailable")
