"""What stands around a number in a line, and whether that lets it be a count of training steps."""

from __future__ import annotations

import functools
import re

from . import step_forms, vocabulary
from .step_forms import BY_EPOCH, BY_ITERATION, BY_NUMBER, BY_PAIR

_SHORT = 2  # letters of a word that tells nothing: k, dx
_WORDS_KEPT = 1024  # answers about words that come again

PAIR = re.compile(rb"\s*(?:/|of)\s*")
# letters of European and of East Asian scripts, without what frames and bars are drawn of
_LETTER = rb"(?:[A-Za-z]|[\xc3-\xdf][\x80-\xbf]|\xe3[\x81-\xbf][\x80-\xbf]|[\xe4-\xed][\x80-\xbf]{2})"
LETTERS = re.compile(_LETTER + rb"+")
_NAME = re.compile(rb"(%b(?:_|%b)*)(?:[^A-Za-z0-9]){0,40}$" % (_LETTER, _LETTER))
_NEXT_NAME = re.compile(rb"\s?((?:%b|_)+)(?![A-Za-z_/])" % _LETTER)
_LEADS_ON = re.compile(rb"[\s:=#\[(]*[-+]?")
_KEY_OF_ANOTHER = re.compile(rb"([\w./()]+)[\"']?\s?[:=]\s?[\"'\[(]?[-+]?$")
_SOURCE_FILE = re.compile(rb"[\w./-]+\.(?:py|cc|cpp|cu|go|rs|java|jl)\b")
_DOTTED = re.compile(rb"\b[A-Za-z_]\w*(?:[./][A-Za-z_]\w*)+(?!\w)")
_CALL = re.compile(rb"\w\([^()]*[\w)]\W*,\s*$")
_CLOCK = re.compile(rb"\b\d\d:\d\d:\d\d(?:[.,]\d+)?")
_TIME_RUN = re.compile(rb"\d+-\d+-\d.*|\d+:\d\d.*")
_UNITS = re.compile(rb"\d ?[KMGTkmg]i?[Bb]?\b|%|\d:\d\d")
_NO_TRAINING = re.compile(
    rb"HTTP/\d|%\||\"(?:GET|POST|PUT|HEAD|DELETE) | : (?:FROM|RUN|COPY|ADD|WORKDIR|ENV|CMD|LABEL|ARG) |\d ?[KMGT]i?B/s"
    rb"|\] (?:Building|FROM|RUN|COPY|ADD|WORKDIR) |\b(?:GET|POST|PUT|HEAD|DELETE) /|@@ -|File \"| [+-]= |\w(?:Error|Exception): "
)
_BUILD_STEP = re.compile(rb"^#\d+ |^\d+ \|\s*[A-Za-z}/#][^|]*$")


def words_of(text: bytes) -> set[str]:
    """The words of ``text``, in lower case; without the names of source files."""
    return _words(_SOURCE_FILE.sub(b"", text))


def words_ahead(text: bytes, of_another: bool = False) -> set[str]:
    """The words of ``text``, which stands before a number, without the names of modules.

    ``of_another``: as far as they tell of the numbers behind that one, too; the key of a figure of its own does not.
    """
    if of_another:
        key = _KEY_OF_ANOTHER.search(text)
        if key is not None and not _words(key[1]) & vocabulary.HELD_OUT:
            text = text[: key.start()]
    return _words(_DOTTED.sub(b"", text))


def _words(text: bytes) -> set[str]:
    return {word.decode("utf-8", "replace").lower() for word in LETTERS.findall(text)}


def is_no_training(text: bytes) -> bool:
    """Whether the line is of an access log, a build, a bar or source text."""
    return _NO_TRAINING.search(text) is not None


def is_build_step(text: bytes) -> bool:
    """Whether the line is one of a container's build, unless it has a metric."""
    return _BUILD_STEP.match(text) is not None


def plain(word: bytes) -> str:
    name: str = word.strip(b"\"':#[](){}").lower().decode("utf-8", "replace")
    return name


def is_process(before: bytes, run: bytes) -> bool:
    """Whether the number ``run`` after ``before`` names one of several processes: ``[rank0]``, ``GPU 3``."""
    end = before[-12:].lower()
    words: list[bytes] = re.findall(rb"[a-z_]+", end)
    if not words or not run.isdigit() or before.rstrip()[-1:].isdigit():
        return False
    return words[-1].decode() in vocabulary.PROCESS


def stands_alone(texts: list[bytes], found: list[re.Match[bytes]], k: int, metric: bool) -> bool:
    """Whether the number is whole, and neither part of a word, a path or a version nor one with a unit."""
    run, before, after = found[k][0], texts[k], texts[k + 1]
    if step_forms.integer(run) is None or (b"," in run and not re.fullmatch(rb"\d{1,3}(?:,\d{3})+", run)):
        return False
    if re.match(rb"[A-Za-z%\xc2\xce]|\.\w|[-_]\w|/[A-Za-z]| ?[KMGT]i?B\b| (?:s|ms|us|min|h|B)\b|\s?%", after):
        return False
    if re.match(rb"\s*/", after) and not (k + 1 < len(found) and PAIR.fullmatch(after)):
        return False
    end = before[-1:]
    if k and PAIR.fullmatch(before):
        return False  # the second of a pair
    if _CALL.search(before[-64:]):
        return False  # an argument, in a line of source text
    if end in (b"-", b"_") and not metric and not after.strip(b" ]):"):
        return False  # the name of something: step-100
    if end in (b".", b"/", b"$", b"@", b"~", b"-", b"+", b"\\"):
        return (
            end == b"-"
            and before[-2:-1].isalpha()
            and kind_of(name_of(texts, found, k, None)) is not BY_NUMBER
        )
    if end.isalpha() or end == b"_" or (end == b":" and before[-2:-1].isalnum()):
        if end != b":" and not metric and not after.strip(b" ]):"):
            return False  # the name of something: global_step100
        return kind_of(name_of(texts, found, k, None)) in (BY_ITERATION, BY_EPOCH)
    return True


def name_of(texts: list[bytes], found: list[re.Match[bytes]], k: int, total: int | None) -> str:
    """The word that names the number: the one before it, else one of steps right behind it."""
    named = _NAME.search(texts[k][-64:])
    name = _lower(named[1]) if named is not None else ""
    last = total if total is not None else k
    after = _NEXT_NAME.match(texts[last + 1])
    following = _lower(after[1]) if after is not None else ""
    several = following.endswith("s") and kind_of(following) == BY_ITERATION
    if after is not None and not several and last + 1 < len(found):
        rest = texts[last + 1][after.end() :]
        whole = step_forms.integer(found[last + 1][0]) is not None
        if _LEADS_ON.fullmatch(rest) and (
            whole or rest.strip()[:1] in (b":", b"=") or following in vocabulary.METRICS
        ):
            following = ""  # names the number behind it
    if kind_of(following) == BY_ITERATION and kind_of(name) not in (BY_ITERATION, BY_EPOCH):
        return following
    if following in vocabulary.NAMES and kind_of(name) == BY_NUMBER:
        return following
    if name in ("no", "number", "num", "train", "training", "n", "global"):
        words = [_lower(word) for word in LETTERS.findall(texts[k])]
        if len(words) > 1 and kind_of(words[-2]) != BY_NUMBER:
            return words[-2]
    return name


def _lower(word: bytes) -> str:
    return word.decode("utf-8", "replace").lower()


@functools.lru_cache(_WORDS_KEPT)
def kind_of(name: str) -> int | None:
    """What the word before a number makes of it; None: no count of steps."""
    parts = name.split("_")
    if any(part in vocabulary.OTHERWISE for part in parts) and not name.startswith("total_"):
        return None
    if any(part in vocabulary.ITERATION for part in parts) or name.endswith(vocabulary.ITERATION_ENDS):
        return BY_ITERATION
    if any(part in vocabulary.EPOCH for part in parts) or name.endswith(vocabulary.EPOCH_ENDS):
        return BY_EPOCH
    return None if any(part in vocabulary.NAMES for part in parts) else BY_NUMBER


def told_otherwise(ahead: set[str], name: str) -> bool:
    """Whether a word before the number makes it one of an evaluation, a download or the like."""
    told = [word for word in ahead if _tells(word)]
    return bool(told) and not set(told) <= set(name.split("_"))


@functools.lru_cache(_WORDS_KEPT)
def _tells(word: str) -> bool:
    within = not word.isascii() and any(part in word for part in vocabulary.BEFORE_WITHIN)
    return within or word in vocabulary.BEFORE_WHOLE or word.startswith(vocabulary.BEFORE)


def is_plain(words: set[str], ahead: set[str], name: str) -> bool:
    """Whether nothing stands before a step or an epoch but what a training prints: no total, no summary, no event."""
    if name.endswith("s") or words & vocabulary.HELD_OUT:
        return False
    others = ahead - vocabulary.ITERATION - vocabulary.EPOCH - vocabulary.METRICS - vocabulary.PREFIX
    return others <= set(name.split("_"))


def elsewhere(words: set[str], text: bytes) -> bool:
    """Whether a line without a metric is about something else than training."""
    if _UNITS.search(_CLOCK.sub(b"", text)) is not None:
        return True
    return any(word.startswith(vocabulary.NOT_ALONE) for word in words)


def is_of_another_trade(words: set[str]) -> bool:
    """Whether a line that names a step or an epoch, and has no metric, is of a program that counts other ones."""
    return bool(words & vocabulary.OTHER_TRADES_WHOLE) or any(
        word.startswith(vocabulary.OTHER_TRADES) for word in words
    )


def is_time(run: bytes) -> bool:
    """Whether what looks like a number is a date or a time of day."""
    return _TIME_RUN.fullmatch(run) is not None


def is_terse(words: set[str], named: bool = False) -> bool:
    """Whether a line has few words but for those of a log: prose and tables of a machine have more."""
    long = [word for word in words - vocabulary.OF_A_LOG if len(word) > _SHORT]
    return len(long) <= (vocabulary.FEW_NAMED if named else vocabulary.FEW)


def names_path(after: bytes) -> bool:
    """Whether the number is one of a file whose path follows, or of an item in a list."""
    return re.match(rb"\s+[.~]{0,2}/\w|[.)]\s+\w", after) is not None


def grade_of_number(texts: list[bytes], k: int, total: int | None, epoch: int | None) -> int:
    """Of a number with no word for steps: a pair in an epoch is one as well."""
    if total is None:
        return BY_NUMBER
    near = epoch is not None and epoch < k and len(LETTERS.findall(texts[k])) <= 1
    return BY_ITERATION if near else BY_PAIR
