"""The section of a fleet file that configures notices."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.files.values import (
    END,
    PRINTABLE_PATTERN,
    PRINTABLE_SAYS,
    DurationText,
    duration_field,
    duration_ns,
)

NoticeKind: TypeAlias = Literal["incident", "verdict", "node", "job_failed", "idle", "maintenance"]
KINDS: Final[tuple[NoticeKind, ...]] = get_args(NoticeKind)
WINDOW_NS: Final = 600_000_000_000
_LONGEST_TEXT: Final = 4096
_LONGEST_NS: Final = 86_400_000_000_000
_OWN_HEADERS: Final = (
    "host",
    "content-length",
    "content-type",
    "connection",
    "transfer-encoding",
    "user-agent",
)

EnvName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*" + END,
        max_length=256,
        extra={"says": "a name of an environment variable"},
    ),
]
Line = Annotated[
    str, Meta(pattern=PRINTABLE_PATTERN, max_length=_LONGEST_TEXT, extra={"says": PRINTABLE_SAYS})
]
HeaderName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+" + END,
        max_length=256,
        extra={"says": "a name of an HTTP header"},
    ),
]


class NoticePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A channel that receives notices: one webhook, file or command."""

    webhook: Annotated[
        str | None,
        Meta(
            description="URL that each notice is posted to, as JSON. env:NAME reads the URL from the environment.",
            examples=["https://hooks.example.org/unidle"],
        ),
    ] = None
    log: Annotated[
        Line | None,
        Meta(
            description="File that each notice is appended to, as a line of JSON. Relative to the fleet file.",
            examples=["/var/log/unidle/notices.jsonl"],
        ),
    ] = None
    command: Annotated[
        Annotated[tuple[Line, ...], Meta(min_length=1, max_length=256)] | None,
        Meta(
            description="Command that runs for each notice, with the notice as JSON on its standard input.",
            examples=[["/usr/local/bin/to-chat", "--room", "fleet"]],
        ),
    ] = None
    name: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]*" + END, max_length=63)] | None,
        Meta(
            description="Name of the channel in `unidle guard notices`. Default: derived from its target.",
            examples=["on-call"],
        ),
    ] = None
    secret_env: Annotated[
        EnvName | None,
        Meta(
            description="Environment variable with the secret that signs each posted notice. Default: notices are not "
            "signed.",
            examples=["NOTICE_SECRET"],
        ),
    ] = None
    headers: Annotated[
        dict[HeaderName, str],
        Meta(
            max_length=32,
            description="Additional HTTP headers. A value env:NAME is read from the environment.",
            examples=[{"Authorization": "env:NOTICE_TOKEN"}],
        ),
    ] = {}
    on: Annotated[
        tuple[NoticeKind, ...],
        Meta(
            min_length=1,
            max_length=len(KINDS),
            description="Kinds of notices to send.",
            examples=[["job_failed", "node"]],
        ),
    ] = KINDS
    window: Annotated[
        DurationText | None,
        duration_field("Time within which the same notice is not sent again. Default: 10m.", example="10m"),
    ] = None


@dataclass(frozen=True, slots=True)
class Webhook:
    """``url`` and the values of ``headers`` may be secrets, or ``env:NAME``."""

    url: str
    secret_env: str
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        return "Webhook(...)"  # an error or a log must not tell the address


@dataclass(frozen=True, slots=True)
class LogFile:
    path: str


@dataclass(frozen=True, slots=True)
class CommandChannel:
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoticeChannel:
    """One place that notices go to. ``name`` is stable as long as its section of the file is the same."""

    name: str
    field: str  # of the fleet file, for errors
    to: Webhook | LogFile | CommandChannel
    on: tuple[NoticeKind, ...] = KINDS
    window_ns: int = WINDOW_NS


def notices_of(document: Document, parts: tuple[NoticePart, ...], base_dir: str) -> tuple[NoticeChannel, ...]:
    """The channels, checked. Environment variables are not read."""
    found: dict[str, NoticeChannel] = {}
    for index, part in enumerate(parts):
        path: Path = ("notices", index)
        channel = _channel(document, part, path, base_dir)
        if channel.name in found:
            field = "name" if part.name else _kinds(part)[0]
            raise document.error(
                (*path, field), "is there twice", remedy="remove one, or give each another name"
            )
        found[channel.name] = channel
    return tuple(found.values())


def _kinds(part: NoticePart) -> list[str]:
    return [kind for kind in ("webhook", "log", "command") if getattr(part, kind) is not None]


def _channel(document: Document, part: NoticePart, path: Path, base_dir: str) -> NoticeChannel:
    kinds = _kinds(part)
    if len(kinds) != 1:
        raise document.error(
            path, "needs one of webhook, log and command", value=", ".join(kinds) or None,
            remedy="give each an entry of its own, for instance {log: notices.jsonl}",
        )  # fmt: skip
    if kinds[0] != "webhook" and (part.secret_env or part.headers):
        field = "secret_env" if part.secret_env else "headers"
        raise document.error((*path, field), "is for a webhook only", remedy="remove it")
    window_ns = WINDOW_NS if part.window is None else duration_ns(part.window)
    if window_ns > _LONGEST_NS:
        raise document.error(
            (*path, "window"), "must be at most 1 day", value=part.window, remedy="for instance 10m"
        )
    to, shown = _target(document, part, path, base_dir)
    key = repr((part.webhook, to if part.webhook is None else ""))
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    dotted = f"notices[{path[1]}]"
    return NoticeChannel(part.name or f"{kinds[0]}:{shown}#{digest}", dotted, to, part.on, window_ns)


def _target(
    document: Document, part: NoticePart, path: Path, base_dir: str
) -> tuple[Webhook | LogFile | CommandChannel, str]:
    """Where it goes, and what of that may be shown."""
    if part.command is not None:
        if not part.command[0].strip():
            raise document.error(
                (*path, "command"), "names no program", remedy="for instance [/usr/local/bin/to-chat]"
            )
        return CommandChannel(part.command), os.path.basename(part.command[0])[:63]  # noqa: PTH119 (one name)
    if part.log is not None:
        if not part.log.strip():
            raise document.error((*path, "log"), "names no file", remedy="for instance notices.jsonl")
        place = os.path.abspath(os.path.join(base_dir, part.log))  # noqa: PTH100, PTH118
        return LogFile(place), place
    url = part.webhook or ""
    _check_url(document, url, (*path, "webhook"))
    for name, value in part.headers.items():
        where: Path = (*path, "headers", name)
        if name.lower() in _OWN_HEADERS or name.lower().startswith("webhook-"):
            raise document.error(where, "is set by unidle itself", remedy="remove it")
        if not (value.isascii() and value.isprintable() and len(value) <= _LONGEST_TEXT):
            raise document.error(
                where, "must be one line of ASCII", remedy="or take it from the environment: env:NAME"
            )
    host = url if url.startswith("env:") else urlsplit(url).hostname or ""
    return Webhook(url, part.secret_env or "", part.headers), host[:200]


def _check_url(document: Document, url: str, path: Path) -> None:
    """Errors do not repeat the address: a part of it may be secret."""
    remedy = "for instance https://hooks.example.org/unidle, or env:NAME"
    if url.startswith("env:"):
        if not re.search(r"^env:[A-Za-z_][A-Za-z0-9_]*" + END, url):
            raise document.error(path, "names no environment variable", remedy=remedy)
        return
    if (problem := url_problem(url)) is not None:
        raise document.error(path, problem, remedy=remedy)


def url_problem(url: str) -> str | None:
    """Why notices cannot be posted to ``url``; None where they can."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is not an address"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must begin with https:// or http:// and name a host"
    if "@" in parts.netloc:
        return "must hold no user and password (use headers)"
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > _LONGEST_TEXT:
        return f"must be at most {_LONGEST_TEXT} characters of ASCII without spaces"
    return None
