"""A self-contained HTML page. It loads nothing from outside itself, and a content security policy forbids it.

Its data is deflated and in base64, so no name that a user or a program chose stands inside a script. Assets of
:mod:`unidle.page` come before those of the page: ``base.css``, and ``base.js`` with what all scripts use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
import zlib
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS: Final = "\u200c\u200d"  # some scripts and emoji need them


def page(
    title: str, body: Iterable[str], *, package: str, scripts: Iterable[str], data: Mapping[str, str]
) -> str:
    """The page as text; write it as UTF-8.

    ``package`` has ``page.css`` and the ``scripts`` among its assets. ``data``: texts of :func:`deflated` by the id of
    their element.
    """
    style = asset(__package__, "base.css") + asset(package, "page.css")
    script = "\n".join([asset(__package__, "base.js"), *(asset(package, name) for name in scripts)])
    parts = (
        _head(title, style, script),
        *body,
        *(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in data.items()),
        f"<script>{script}</script>",
        "</body></html>\n",
    )
    return "\n".join(parts)


def asset(package: str, name: str) -> str:
    """A text among the assets of a package."""
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")


def escaped(text: str) -> str:
    """Text between tags or in an attribute, as :func:`visible` has it."""
    return escape(visible(text))


def visible(text: str, limit: int | None = None) -> str:
    """One line that is safe to show: control, bidi and surrogate characters become U+FFFD.

    At most ``limit`` characters are kept; a cut is shown by an ellipsis.
    """
    clean = "".join(map(_visible, text))
    return clean if limit is None or len(clean) <= limit else clean[: limit - 1] + "…"


def deflated(value: bytes | object) -> str:
    """Bytes, or a value as JSON, for an element of data."""
    raw = value if isinstance(value, bytes) else _as_json(value)
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def _as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()  # ASCII: names may hold half a surrogate pair


def _visible(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if character in _JOINERS or unicodedata.category(character) not in _HIDDEN:
        return character
    return "\ufffd"


def _head(title: str, style: str, script: str) -> str:
    """From the document type to the start of the body. ``script`` is the one text that the page may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head><body>"
    )
