"""From the text of an answer to edits: one JSON object, in a fence or not."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from unidle.tune.edits import Edit
from unidle.words import counted

MOST_EDITS: Final = 50
_FENCE: Final = re.compile(r"^[ \t]*(```+|~~~+)[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_THOUGHT: Final = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)


class UnusableAnswer(Exception):
    """An answer without edits that can be read; the text is for the model, which may correct it."""


def edits_of(text: str) -> tuple[Edit, ...]:
    """The edits of an answer; none where its list is empty. Errors: :class:`UnusableAnswer`."""
    found = _object_of(_THOUGHT.sub("", text))
    edits = found["edits"]
    if not isinstance(edits, list):
        raise UnusableAnswer('"edits" is no list')
    if len(edits) > MOST_EDITS:
        raise UnusableAnswer(f"{counted(len(edits), 'edit')} exceed the limit of {MOST_EDITS}")
    return tuple(_edit(one, f"edits[{at}]") for at, one in enumerate(edits))


def _edit(one: object, place: str) -> Edit:
    if not isinstance(one, dict):
        raise UnusableAnswer(f"{place} is no object")
    for name in ("file", "old", "new"):
        if not isinstance(one.get(name), str):
            raise UnusableAnswer(f'{place} has no text "{name}"')
    why = one.get("why")
    return Edit(one["file"], one["old"], one["new"], why if isinstance(why, str) else "")


def _object_of(text: str) -> dict[str, Any]:
    """The one object with ``edits``: the whole text, a fence of it, or an object in it."""
    for candidates in ([text], [match.group(2) for match in _FENCE.finditer(text)]):
        found = [one for one in map(_parsed, candidates) if one is not None]
        if len(found) > 1:
            raise UnusableAnswer(f'the answer has {counted(len(found), "object")} with "edits"; give one')
        if found:
            return found[0]
    found = _embedded(text)
    if len(found) != 1:
        count = len(found) or "no"
        raise UnusableAnswer(f'the answer has {count} JSON objects with "edits"; give one, and nothing else')
    return found[0]


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "edits" in value else None


def _embedded(text: str) -> list[dict[str, Any]]:
    """Objects within prose. A brace that begins none is passed over, a bounded number of times."""
    decoder = json.JSONDecoder(object_pairs_hook=_once)
    found: list[dict[str, Any]] = []
    at = text.find("{")
    for _ in range(1_000):
        if at < 0:
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            if isinstance(value, dict) and "edits" in value:
                found.append(value)
        at = text.find("{", end)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UnusableAnswer("a name occurs twice in one JSON object")
    return found
