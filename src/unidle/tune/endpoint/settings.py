"""Which endpoint is used: three variables of the environment, and nothing else. The key is in no message, file or patch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from unidle.errors import BadInput

URL: Final = "UNIDLE_TUNE_URL"
MODEL: Final = "UNIDLE_TUNE_MODEL"
KEY: Final = "UNIDLE_TUNE_KEY"
NO_ENDPOINT: Final = f"no model is configured ({URL}, {MODEL}): only built-in fixes are tried"
_HIDDEN: Final = "[key]"
_LEAST_KEY: Final = 4


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """``url``: the base, such as ``http://127.0.0.1:8000/v1``. ``key``: sent as bearer token; empty: none is sent."""

    url: str
    model: str
    key: str = field(default="", repr=False)

    def hide_key(self, text: str) -> str:
        """A text of the server without the key: some servers repeat what they were sent."""
        return text.replace(self.key, _HIDDEN) if len(self.key) >= _LEAST_KEY else text


def endpoint_of(environ: Mapping[str, str] = os.environ) -> ModelEndpoint | None:
    """The endpoint that the environment has; None without one. Errors: :class:`BadInput`, without the key."""
    url, model, key = (environ.get(name, "").strip() for name in (URL, MODEL, KEY))
    if not url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput("is no URL", field=URL, remedy="such as http://127.0.0.1:8000/v1") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise BadInput("is no URL of HTTP", field=URL, remedy="such as http://127.0.0.1:8000/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadInput("has more than host, port and path", field=URL, remedy=f"give the key in {KEY}")
    if not model:
        raise BadInput("is missing", field=MODEL, remedy="name the model of the endpoint")
    if not (key.isascii() and key.isprintable()):
        raise BadInput("has characters that no HTTP header has", field=KEY, remedy="copy the key again")
    return ModelEndpoint(url.rstrip("/"), model, key)
