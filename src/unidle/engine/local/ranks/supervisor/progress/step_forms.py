"""How a line names a step: forms of well-known programs, and patterns made from lines of the same shape."""

from __future__ import annotations

import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Reading = tuple[int, "int | None", "int | None"]
    """Of a line: the number, the epoch it is in, and how many there are in an epoch."""

NAMED_CONFIDENCE = 0.97
GUESSED = "lines"
"""The name of a form that no program is known for (as in ``unidle.events.marks``)."""
BY_ITERATION, BY_PAIR, BY_EPOCH, BY_NUMBER = 3, 2, 1, 0  # grades: a higher one may follow a lower one

# Name, what a line must hold, the number of the first epoch (None: its steps start at 0 there, too, but are not
# counted from the first epoch on), the pattern.
_NAMED: tuple[tuple[str, bytes, int | None, bytes], ...] = (
    ("pytorch-examples", b"Train Epoch: ", 1,
     rb"\bTrain Epoch: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<total>\d+) "),
    ("torchvision", b"Epoch: [", 0, rb"\bEpoch: \[(?P<epoch>\d+)\]\s*\[ *(?P<step>\d+)/ *(?P<total>\d+)\]"),
    ("timm", b"Train: ", 0, rb"\bTrain: (?P<epoch>\d+) \[ *(?P<step>\d+)/(?P<total>\d+) "),
    ("mmcv", b"Epoch", 1, rb"\bEpoch(?:\(train\))?\s+\[(?P<epoch>\d+)\]\[ *(?P<step>\d+)/(?P<total>\d+)\]"),
    ("mmcv", b"Iter", None, rb"\bIter(?:\(train\))?\s+\[ *(?P<step>\d+)/\d+\]\s+(?:base_)?lr: "),
    ("detectron2", b"total_loss: ", None, rb"\biter: (?P<step>\d+)\s+total_loss: "),
    ("word-language-model", b" batches | lr ", 1, rb"\| epoch +(?P<epoch>\d+) \| +(?P<step>\d+)/ *(?P<total>\d+) batches \| lr "),
    ("fairseq", b"num_updates", None,
     rb"(?:\| train_inner \| .{0,600}|\bepoch \d{1,9}:\s{1,9}\d{1,15} / \d{1,15} .{0,600})\bnum_updates(?:=|\": \"?)(?P<step>\d+)"),
    ("mingpt", b"iter_dt ", None, rb"\biter_dt [\d.]+ms; iter (?P<step>\d+): train loss "),
    ("paddle", b"[Iter: ", 1,
     rb"(?i)\[train\]\s*\[Epoch (?P<epoch>\d+)/\d+\]\s*\[Iter: *(?P<step>\d+)/(?P<total>\d+)\]"),
    ("xgboost", b"]\t", None, rb"^\[(?P<step>\d+)\]\t\S{0,32}?(?:train|validation|eval|dtrain)\S{0,32}-[\w@-]{1,32}:[-\d.]"),
    ("lightgbm", b"'s ", None, rb"^\[(?P<step>\d+)\]\s+\S+'s \w+: "),
    ("catboost", b"learn: ", None, rb"(?:^|[\s:\]])(?P<step>\d+):\s+learn: "),
    ("maxtext", b"completed step: ", None, rb"\bcompleted step: (?P<step>\d+), seconds: "),
    ("rl-games", b" epoch: ", None, rb"\bfps total: \d+ epoch: (?P<step>\d+)/"),
    ("stylegan", b"kimg ", None, rb"(?:^|\s)tick (?P<step>\d{1,15})\s{1,9}kimg [\d.]{1,15}\s{1,9}time "),
    ("namd", b"ENERGY: ", None, rb"^ENERGY:\s{1,16}(?P<step>\d{1,15})(?:\s{1,16}-?\d{1,15}\.\d{1,9}){6}"),
    ("fastprogress", b"% [", 1,
     rb"\bEpoch (?P<epoch>\d{1,9})/\d{1,9} : \|.{0,400}?\| {0,3}[\d.]{1,6}% \[(?P<step>\d{1,15})/(?P<total>\d{1,15}) [\d:]{1,9}<"),
    ("ultralytics", b"%", 1,
     rb"^\s*(?P<epoch>\d+)/\d+\s+[\d.]+[GM]B?\s.{0,240}?:\s{0,9}\d{1,3}%.{0,160}?\s(?P<step>\d{1,15})/(?P<total>\d{1,15})\s"),
)  # fmt: skip
# What a logger or a launcher puts before each line.
_LEVEL = rb"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)"
_PREFIX = re.compile(
    rb"(?:\s*(?:[\[(]?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[\])]?:?"
    rb"|[\[(]?\d\d:\d\d:\d\d(?:[.,]\d+)?[\])]?:?(?=\s)|\d{10}\.\d+(?=\s)"
    rb"|[IWEFD]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ [\w./-]+:\d+\]"
    rb"|\[(?:default|rank|gpu|worker|node)\s?\d+\]:?|\(\w[\w.]* pid=\d+(?:, ip=[\d.]+)?\)"
    rb"|(?:- )?[A-Za-z_][\w.]* (?:- )?%b\b(?: -(?=\s))?|\[%b\s*\]:?|%b:[\w.]+:|%b\b:?|[-|](?=\s)))+\s*"
    % (_LEVEL, _LEVEL, _LEVEL, _LEVEL)
)

_SAMPLES = frozenset({"pytorch-examples"})  # count samples, not steps

_HEADING = rb"(?i)^\W*(?:starting |start )?epoch:?\s*[#\[]?\s*(\d+)\s*(?:(?:/|of)\s*\d+)?\]?\W*$"
HEADING_BYTES = 128
_KERAS = rb"(?:^|[\s\x08:\]])(?P<step>\d{1,15})/(?:(?P<total>\d{1,15})|Unknown)\s.{0,240}?\bloss: "


class Headings:
    """The epoch that lines are in which do not name it: it stands in a line of its own before them, as Keras prints it.

    Once all steps of an epoch were seen, what follows until the next heading is no training: ``evaluate()``
    draws the same bars.
    """

    __slots__ = ("_done", "epoch")

    def __init__(self, epoch: int | None = None) -> None:
        self.epoch = epoch
        self._done = False

    def see(self, line: bytes) -> None:
        epoch = epoch_headed(line)
        if epoch is not None:
            self.epoch, self._done = epoch, False

    def reading(self, number: int, total: int | None) -> Reading | None:
        """The reading of a line with these numbers; None where it is none of training."""
        if self.epoch is not None:
            if self._done:
                return None
            self._done = total is not None and number >= total
        return number, self.epoch, total


class StepForm:
    """Reads the steps of lines of one form. ``pattern``: the same, for a job file; ``spaced``: its lines have blanks."""

    __slots__ = (
        "_epoch",
        "_read",
        "_total",
        "confidence",
        "first_epoch",
        "grade",
        "headings",
        "name",
        "needle",
        "pattern",
        "plain",
    )

    def __init__(
        self, name: str, pattern: bytes, needle: bytes, grade: int, confidence: float,
        first_epoch: int | None = None, headings: Headings | None = None, spaced: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.pattern = pattern.decode("utf-8", "replace")
        if name == "ultralytics":
            self.pattern = self.pattern.replace(r"<step>\d{1,15}", r"<step>[1-9]\d{0,14}")
        self.needle = needle
        self.grade = grade
        self.confidence = confidence
        self.first_epoch = first_epoch
        self.headings = headings  # where the epoch stands in a line of its own, before
        if name == GUESSED and spaced:  # a number that passes 999 may be written 1,000
            pattern = pattern.replace(rb"(?P<step>\d+)", rb"(?P<step>\d{1,3}(?:,\d{3})+|\d+)")
        self._read = re.compile(_linear(pattern, spaced) if name == GUESSED else pattern).search
        self._epoch: int | None = None
        self._total: int | None = None  # of a guessed form: a loop of another length is another loop
        in_epochs = headings is not None or b"<epoch>" in pattern
        self.plain = grade == BY_ITERATION and not in_epochs and name not in _SAMPLES
        """Whether the number can be compared with the steps in names of checkpoints."""

    def read(self, line: bytes) -> Reading | None:
        """The step that ``line`` reports; None if it reports none."""
        found = self._read(line)
        if found is None:
            return None
        groups = found.groupdict()
        number = integer(groups["step"])
        if number is None or (not number and self.name == "ultralytics"):
            return None  # the bar of an epoch before its first step
        total = integer(groups.get("total"))
        if self.name == GUESSED:
            if b"," in groups["step"]:
                self.pattern = self.pattern.replace(r"(?P<step>\d+)", r"(?P<step>[\d,]+)")
            epoch = integer(groups.get("epoch"))
            self._total = total if self._total is None or epoch != self._epoch else self._total
            self._epoch = epoch
            if total != self._total:
                return None
        if self.headings is not None:
            return self.headings.reading(number, total)
        return number, integer(groups.get("epoch")), total


def _linear(pattern: bytes, spaced: bool) -> bytes:
    """The ``pattern`` that was made of a line, so that no line takes it more time than its length accounts for.

    In the pattern as a job file has it, numbers that stand next to each other may be cut in many ways.
    """
    run = (RUN if spaced else RUN_OF_CSV).pattern
    parts = (
        (rb"[-+\w.:,]+", rb"(?>[-+]?(?:%b|(?i:nan|inf(?:inity)?|none|null))|-{1,3})" % run),
        (rb"\W*", rb"(?>(?:[\s=#>.*\-]|\xe2[\x94-\x96].)*)"),
        (rb">[\d,]+)", rb">(?>\d+(?:,\d{3})*))"),
        (rb">\d{1,3}(?:,\d{3})+|\d+)", rb">(?>\d{1,3}(?:,\d{3})+|\d+))"),
        (rb">\d+)", rb">(?>\d+))"),
    )
    end = rb"\W*$" if pattern.endswith(rb"\W*$") else b""
    body = pattern[: len(pattern) - len(end)]
    for wide, narrow in parts:
        body = body.replace(wide, narrow)
    return (body if sys.version_info >= (3, 11) else spelled_out(body)) + end


def spelled_out(pattern: bytes) -> bytes:
    """``pattern`` without ``(?>...)``, which Pythons before 3.11 lack: a group that is looked ahead at, then taken as it was."""
    out, *rest = pattern.split(b"(?>")
    for number, part in enumerate(rest):
        depth, at = 1, -1
        while depth:
            at += 1
            depth += {b"(": 1, b")": -1}.get(part[at : at + 1], 0)
        out += b"(?:(?=(?P<once%d>%b))(?P=once%d))" % (number, part[:at], number) + part[at + 1 :]
    return out


def integer(text: bytes | None) -> int | None:
    digits = (text or b"").replace(b",", b"").replace(b"_", b"")
    return int(digits) if digits.isdigit() and len(digits) <= 15 else None


def prefix_of(line: bytes) -> int:
    """How long what a logger or a launcher puts before each line is: a time, a level, a rank, a process."""
    found = _PREFIX.match(line)
    return 0 if found is None else found.end()


def epoch_headed(line: bytes) -> int | None:
    """The epoch where ``line`` is nothing but the heading of one."""
    if len(line) > HEADING_BYTES or b"poch" not in line.lower():
        return None
    found = re.search(_HEADING, line[prefix_of(line) :])
    return integer(found[1]) if found is not None else None


def named(line: bytes, heading: int | None) -> StepForm | None:
    """The form of a well-known program that ``line`` is of; ``heading``: the epoch that stood before it."""
    for name, needle, first_epoch, pattern in _NAMED:
        if needle in line and re.search(pattern, line) is not None:
            return StepForm(name, pattern, needle, BY_ITERATION, NAMED_CONFIDENCE, first_epoch)
    if heading is not None and re.search(_KERAS, line) is not None:
        return StepForm("keras", _KERAS, b"loss: ", BY_ITERATION, NAMED_CONFIDENCE, 1, Headings(heading))
    return None


# ---- patterns made of a line

RUN = re.compile(rb"\d+(?:(?:[.:_-]|,(?=\d{3}(?!\d))|[eE][-+]?)\d+)*")
RUN_OF_CSV = re.compile(rb"\d+(?:(?:[.:_-]|[eE][-+]?)\d+)*")
_BLANK = re.compile(rb"(?:[\s=#>.*\-]|\xe2[\x94-\x96].){2,}|\s+")
_OF_BARS = re.compile(rb"==|##|\.\.|--|\*\*|[\[|][#=>*.-]|\xe2[\x94-\x96]")


def squeezed(text: bytes) -> bytes:
    """``text`` with one space for each blank and each run of a bar's characters: their widths differ in lines of the same shape."""
    return _BLANK.sub(b" ", text) if _OF_BARS.search(text) is not None else b" ".join(text.split())


def runs_of(line: bytes) -> re.Pattern[bytes]:
    """What cuts ``line`` into numbers: in a line without blanks a comma is between two of them."""
    return RUN if b" " in line or b"\t" in line else RUN_OF_CSV


def pattern_of(line: bytes, groups: dict[int, bytes], fixed: frozenset[int], suffix: int) -> bytes:
    """A pattern for lines like ``line``: the runs at ``groups`` get these names, those at ``fixed`` stay as they are.

    Of the text after the last group ``suffix`` bytes of it (blanks made one) are in it; where nothing follows, the end.
    """
    runs = list(runs_of(line).finditer(line))
    last = max(groups)
    parts = [b"^", rb"\s*"]
    at = 0
    for k in range(last + 1):
        parts += _text(line[at : runs[k].start()])
        run = runs[k][0]
        if k in groups:
            parts.append(b"(?P<%s>%s)" % (groups[k], rb"[\d,]+" if b"," in run else rb"\d+"))
        else:
            parts.append(re.escape(run) if k in fixed else rb"[-+\w.:,]+")
        at = runs[k].end()
    end = runs[last + 1].start() if last + 1 < len(runs) else len(line)
    tail = line[at:end]
    cut = squeezed(tail).strip()[:suffix]
    if any(byte > 127 or chr(byte).isalpha() for byte in cut) or (cut and last + 1 == len(runs)):
        parts += _text(_raw_prefix(tail, cut))
    elif not tail.strip() and last + 1 < len(runs):
        parts.append(rb"\s+[-+.\d]")
    elif last + 1 < len(runs):
        parts += [rb"(?!\.?\d)", *_text(tail), rb"[-+.\d]"]
    else:
        parts.append(rb"\W*$" if tail.strip() else rb"\s*$")
    return b"".join(_merged(parts))


def _raw_prefix(text: bytes, wanted: bytes) -> bytes:
    """As much of ``text`` as is ``wanted`` once its blanks are made one."""
    for end in range(len(text) + 1):
        if squeezed(text[:end]).strip() == wanted and not text[end : end + 1].isalpha():
            return text[:end]
    return text


def _text(text: bytes) -> Iterator[bytes]:
    """A text between two numbers: what may be wider or narrower in the next line is left open."""
    if text[-1:] in (b"-", b"+") and not text[-2:-1].isalnum():
        text = text[:-1]  # a sign
    at = 0
    for blank in _BLANK.finditer(text):
        if blank.start() > at:
            yield re.escape(text[at : blank.start()])
        yield rb"\s*" if blank[0].isspace() else rb"\W*"
        at = blank.end()
    if at < len(text):
        yield re.escape(text[at:])
        yield rb"\s*"


def _merged(parts: list[bytes]) -> list[bytes]:
    """Without blanks that follow blanks; of two the wider one stays."""
    merged: list[bytes] = []
    for part in parts:
        if part in _BLANKS and merged and merged[-1] in _BLANKS:
            merged[-1] = max(part, merged[-1], key=_BLANKS.index)
        else:
            merged.append(part)
    return merged


_BLANKS = (rb"\s*", rb"\W*")
