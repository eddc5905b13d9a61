"""What stands around a number in a line, and whether that lets it be a count of training steps."""

from __future__ import annotations

import re

from . import forms, vocabulary
from .forms import BY_EPOCH, BY_ITERATION, BY_NUMBER, BY_PAIR

PAIR = re.compile(rb"\s*(?:/|of)\s*")
_NAME = re.compile(rb"([A-Za-z][A-Za-z_]*)[^A-Za-z0-9]{0,40}$")
_NEXT_NAME = re.compile(rb"\s?([A-Za-z_]+)(?![A-Za-z_/])")
_LETTERS = re.compile(rb"[A-Za-z]+")
_NOT_ALONE = vocabulary.ANYWHERE + vocabulary.BEFORE
_SOURCE_FILE = re.compile(rb"[\w./-]+\.(?:py|cc|cpp|cu|go|rs|java|jl)\b")
_CLOCK = re.compile(rb"\b\d\d:\d\d:\d\d(?:[.,]\d+)?")
_UNITS = re.compile(rb"\d ?[KMGTkmg]i?[Bb]?\b|%|\d:\d\d")
_NO_TRAINING = re.compile(
    rb"HTTP/\d|%\||\"(?:GET|POST|PUT|HEAD|DELETE) | : (?:FROM|RUN|COPY|ADD|WORKDIR|ENV|CMD|LABEL|ARG) |\d ?[KMGT]i?B/s|\] (?:Building|FROM|RUN|COPY|ADD|WORKDIR) |^#\d+ "
)


def words_of(text: bytes) -> set[str]:
    """The words of ``text``, in lower case; without the names of source files."""
    return {word.decode() for word in _LETTERS.findall(_SOURCE_FILE.sub(b"", text.lower()))}


def is_no_training(text: bytes) -> bool:
    """Whether the line is of an access log, a build or a bar."""
    return _NO_TRAINING.search(text) is not None


def plain(word: bytes) -> str:
    name: str = word.strip(b"\"':#[](){}").lower().decode("ascii", "replace")
    return name


def is_process(before: bytes) -> bool:
    """Whether the number after ``before`` names one of several processes: ``[rank0]``, ``GPU 3``."""
    words = _LETTERS.findall(before[-12:].lower())
    return bool(words) and words[-1].decode() in vocabulary.PROCESS and not before.rstrip()[-1:].isdigit()


def stands_alone(texts: list[bytes], found: list[re.Match[bytes]], k: int) -> bool:
    """Whether the number is whole, and neither part of a word, a path or a version nor one with a unit."""
    run, before, after = found[k][0], texts[k], texts[k + 1]
    if forms.integer(run) is None or (b"," in run and not re.fullmatch(rb"\d{1,3}(?:,\d{3})+", run)):
        return False
    if re.match(rb"[A-Za-z%\xc2\xce]|\.\w|[-_]\w|/[A-Za-z]| ?[KMGT]i?B\b| (?:s|ms|us|min|h|B)\b|\s?%", after):
        return False
    if re.match(rb"\s*/", after) and not (k + 1 < len(found) and PAIR.fullmatch(after)):
        return False
    end = before[-1:]
    if k and PAIR.fullmatch(before):
        return False  # the second of a pair
    if end in (b".", b"/", b"$", b"@", b"~", b"-", b"+", b"\\"):
        return end == b"-" and before[-2:-1].isalpha() and kind_of(name_of(texts, k, None)) is not BY_NUMBER
    if end.isalpha() or end == b"_" or (end == b":" and before[-2:-1].isalnum()):
        return kind_of(name_of(texts, k, None)) in (BY_ITERATION, BY_EPOCH)
    return True


def name_of(texts: list[bytes], k: int, total: int | None) -> str:
    """The word that names the number: the one before it, else one of steps right behind it."""
    found = _NAME.search(texts[k][-64:])
    name = found[1].lower().decode() if found is not None else ""
    after = _NEXT_NAME.match(texts[(total if total is not None else k) + 1])
    following = after[1].lower().decode() if after is not None else ""
    if following in vocabulary.ITERATION and kind_of(name) not in (BY_ITERATION, BY_EPOCH):
        return following
    if following in vocabulary.NAMES and kind_of(name) == BY_NUMBER:
        return following
    if name in ("no", "number", "num", "train", "training", "n", "global"):
        words: list[bytes] = _LETTERS.findall(texts[k].lower())
        if len(words) > 1 and kind_of(words[-2].decode()) in (BY_ITERATION, BY_EPOCH):
            return words[-2].decode()
    return name


def kind_of(name: str) -> int | None:
    """What the word before a number makes of it; None: no count of steps."""
    parts = name.split("_")
    if any(part in vocabulary.OTHERWISE for part in parts) and not name.startswith("total_"):
        return None
    if any(part in vocabulary.ITERATION for part in parts):
        return BY_ITERATION
    if any(part in vocabulary.EPOCH for part in parts):
        return BY_EPOCH
    return None if any(part in vocabulary.NAMES for part in parts) else BY_NUMBER


def told_otherwise(ahead: set[str], name: str) -> bool:
    """Whether a word before the number makes it one of an evaluation, a download or the like."""
    own = name.split("_")
    return any(
        word not in own and (word in vocabulary.BEFORE_WHOLE or word.startswith(vocabulary.BEFORE))
        for word in ahead
    )


def elsewhere(words: set[str], text: bytes) -> bool:
    """Whether a line without a metric is about something else than training."""
    if _UNITS.search(_CLOCK.sub(b"", text)) is not None:
        return True
    return any(word.startswith(_NOT_ALONE) for word in words)


def grade_of_number(texts: list[bytes], k: int, total: int | None, epoch: int | None) -> int:
    """Of a number with no word for steps: a pair in an epoch is one as well."""
    if total is None:
        return BY_NUMBER
    near = epoch is not None and epoch < k and len(_LETTERS.findall(texts[k])) <= 1
    return BY_ITERATION if near else BY_PAIR
