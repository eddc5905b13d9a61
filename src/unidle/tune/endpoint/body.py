"""The body of an answer: one JSON object, or a stream of server-sent events; both with limits of size and time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

MOST_BYTES: Final = 8 << 20
"""Of one answer, with the form around its text."""
_ENOUGH: Final = 65_536


class BrokenAnswer(Exception):
    """An answer that is no answer of the protocol. ``again``: another try may succeed."""

    def __init__(self, problem: str, *, again: bool = True) -> None:
        self.again = again
        super().__init__(problem)


class AnswerStream(Protocol):
    """What is read; ``read1`` returns what there is, and nothing at the end."""

    def read1(self, size: int, /) -> bytes:
        """At most ``size`` bytes."""


def pieces(stream: AnswerStream, left_s: Callable[[], float]) -> Iterator[bytes]:
    """What arrives, until the end, the limit of size, or the end of time. Errors: BrokenAnswer, TimeoutError, OSError."""
    size = 0
    while piece := stream.read1(_ENOUGH):
        size += len(piece)
        if size > MOST_BYTES:
            raise BrokenAnswer(f"is over the limit of {MOST_BYTES >> 20} MiB", again=False)
        if left_s() <= 0:
            raise TimeoutError("the answer does not end")
        yield piece


def text_of_json(raw: bytes) -> str:
    """The text of a whole answer. Errors: BrokenAnswer."""
    return _checked(_object(raw), "message")[0]


def text_of_events(parts: Iterator[bytes]) -> str:
    """The text of a stream, put together. It has to end with ``[DONE]`` or a reason to finish. Errors: BrokenAnswer."""
    text, finished = [], ""
    for data in _events(parts):
        if data.strip() == b"[DONE]":
            finished = finished or "stop"
            break
        body = _object(data)
        if body.get("choices") == []:  # the last one of some servers has only the usage
            continue
        piece, reason = _checked(body, "delta")
        text.append(piece)
        finished = reason or finished
    if not finished:
        raise BrokenAnswer("ends in the middle")
    return "".join(text)


def _events(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The data of each event: its ``data`` lines, joined. Comments and other fields are left out."""
    lines: list[bytes] = []
    for line in _stream_lines(parts):
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []
    if lines:
        yield b"\n".join(lines)


def _stream_lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    waiting: list[bytes] = []  # pieces without an end of line: joined once, however many there are
    for part in parts:
        if b"\n" not in part:
            waiting.append(part)
            continue
        *lines, rest = b"".join([*waiting, part]).split(b"\n")
        waiting = [rest]
        for line in lines:
            yield line.removesuffix(b"\r")
    rest = b"".join(waiting)
    if rest:
        yield rest.removesuffix(b"\r")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BrokenAnswer("is no JSON") from error
    if not isinstance(found, dict):
        raise BrokenAnswer("is no JSON object")
    return found


def _checked(body: dict[str, Any], part: str) -> tuple[str, str]:
    """The text of the first choice, and its reason to finish."""
    if body.get("error"):
        raise BrokenAnswer(f"is an error: {error_text(body)}")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BrokenAnswer("has no choices")
    reason = choices[0].get("finish_reason")
    if reason == "length":
        raise BrokenAnswer("was cut at the limit of tokens of the endpoint", again=False)
    message = choices[0].get(part)
    if not isinstance(message, dict):
        if part == "delta" and reason:
            return "", str(reason)
        raise BrokenAnswer(f"has no {part}")
    content = message.get("content")
    if isinstance(content, list):  # in parts
        content = "".join(
            one["text"] for one in content if isinstance(one, dict) and isinstance(one.get("text"), str)
        )
    if content is None and part == "delta":
        content = ""
    if not isinstance(content, str):
        raise BrokenAnswer("has no text", again=False)
    return content, str(reason or "")


def error_text(body: object) -> str:
    """What an error of the endpoint reports, in at most 300 characters."""
    if isinstance(body, dict):
        inner = body.get("error", body.get("message", body.get("detail", "")))
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("type") or inner
        body = inner
    return " ".join(str(body).split())[:300]
