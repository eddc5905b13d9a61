"""A notice, as it is sent."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec

from unidle.files.fleet_notices import NoticeKind

FORM: Final = 1
"""Grows when a receiver would have to change; new fields do not count."""

SentKind: TypeAlias = NoticeKind | Literal["summary", "test"]
Severity: TypeAlias = Literal["info", "warning", "critical"]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one subject (a job, node or device). ``id`` is the same whenever it is sent again.

    ``seq`` and ``time_ns`` are those of the event in the log; of two notices on a subject the one with the
    larger ``seq`` is the newer. ``count`` is the number of changes that it reports.
    """

    v: int = FORM
    id: str
    seq: int
    time_ns: int
    time: str
    kind: SentKind
    state: str
    severity: Severity
    subject: str
    text: str
    job: str | None = None
    attempt: int | None = None
    rank: int | None = None
    node: str | None = None
    count: int = 1
    counts: dict[str, int] = {}
    subjects: list[str] = []


_ENCODER: Final = msgspec.json.Encoder()


def encode(notice: Notice) -> bytes:
    """The notice as one line of JSON (without the line feed)."""
    return _ENCODER.encode(notice)


def notice_id(*parts: int | str) -> str:
    """32 hexadecimal digits that follow from what the notice is about."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def iso(time_ns: int) -> str:
    """A moment as ``2026-01-31T12:00:00.123Z``."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 1_000_000 % 1000:03d}Z"
