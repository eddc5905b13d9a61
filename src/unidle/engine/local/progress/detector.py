"""Finds, in lines that are alike, the number that counts steps.

Lines are alike when they are equal but for their numbers. A whole number of such lines that keeps
growing may count steps: words around it speak for or against it, and so do words of a training
(loss, lr, ...) in the line. How many lines it takes until that is believed follows from them; the
lines before are kept (a bounded number) so that their steps are not lost.

What the search costs is bounded, too: looks at lines use credit up. Without it so many lines pass, but for those with
words of training, which have a credit of their own. All that depends on the output alone, not on when it is read.
"""

from __future__ import annotations

import re

from . import context, forms, vocabulary
from .forms import BY_EPOCH, BY_ITERATION, BY_NUMBER, BY_PAIR, Form, Headings, Reading

_LINE_BYTES = 1024
_MOST_SHAPES = 512
_MOST_FIELDS = 256
_MOST_RUNS = 16
_KEPT = 64
_LARGEST = 10**12
_UNIX_TIME = (1_300_000_000, 2_200_000_000)
_SUFFIX_BYTES = 24
_MOST_STRIDES = 8
_EVEN = 0.8
_FRESH = 64  # looks

_CREDIT = 6_000  # for the first lines
_SEEN_COSTS, _NEW_COSTS = 3, 40  # about 2 us each
_BYTES_A_CREDIT = 16
_PASSED_BYTES = 32 * 1024  # of lines that pass once there is no credit left
_ENOUGH = 120  # to look at some lines that follow each other
_EARNED, _WORDS_EARNED = 8, 24  # by that

_SUFFIX = re.compile(rb"[^A-Za-z0-9]*[A-Za-z_]*")
_COLUMNS = re.compile(rb"[\s,|]+")

Kept = tuple[int, Reading]


class Field:
    """One number of lines that are alike, and how it went on."""

    __slots__ = (
        "at",
        "bad",
        "confidence",
        "dead",
        "epoch",
        "fixed",
        "grade",
        "groups",
        "grown",
        "kept",
        "last",
        "need",
        "odd",
        "overall",
        "seen",
        "since",
        "start",
        "strict",
        "strides",
        "suffix",
        "total",
    )  # fmt: skip

    def __init__(self, grade: int, *, metric: bool, suffix: int, fixed: frozenset[int]) -> None:
        self.grade = grade
        self.need, self.strict, self.confidence = _NEEDS[grade, metric]
        self.groups: dict[int, bytes] = {}
        self.fixed, self.suffix = fixed, suffix
        self.kept: list[Kept] = []
        self.strides: dict[int, int] = {}
        self.last = self.start = -1
        self.epoch: int | None = None
        self.total: int | None = None
        self.at = 0  # the look that saw it last
        self.overall = False  # counts over all epochs, by its name
        self.seen = self.grown = self.odd = self.bad = self.since = 0
        self.dead = False

    def see(self, t_ns: int, reading: Reading) -> None:
        number, epoch, total = reading
        if total is not None and (number > total or not total):
            self._broken()
            return
        if self.total is not None and total != self.total:
            return  # of another loop
        self.total = total
        if self.last >= 0 and number == self.last and epoch == self.epoch:
            return  # another process of the rank prints the same, or a bar is drawn again
        self.seen += 1
        if self.last < 0:
            self.start = number
        elif epoch is not None and self.epoch is not None and epoch != self.epoch:
            self._turn(number, epoch > self.epoch)
        elif number > self.last:
            self._grow(number - self.last)
        else:
            self._turn(number, number <= self.start and self.since >= 2)
        self.last, self.epoch = number, epoch
        self.kept.append((t_ns, reading))
        if len(self.kept) > _KEPT:
            del self.kept[1:-1:2]

    def _turn(self, number: int, begins: bool) -> None:
        """The number does not grow: an epoch begins, or it counts no steps."""
        if begins:
            self.grown += 1
            self.start, self.since = number, 0
        else:
            self._broken()

    def _grow(self, by: int) -> None:
        self.grown += 1
        self.since += 1
        if by in self.strides or len(self.strides) < _MOST_STRIDES:
            self.strides[by] = self.strides.get(by, 0) + 1
        else:
            self.odd += 1

    def _broken(self) -> None:
        self.bad += 1
        self.dead = self.bad > 2 and self.bad * 4 > self.grown

    @property
    def sure(self) -> bool:
        if self.dead or self.seen < self.need or self.bad * 8 > self.grown:
            return False
        return not self.strict or self.evenness >= _EVEN

    @property
    def evenness(self) -> float:
        """How many of the strides were equal: 1 where all were."""
        strides = self.strides.values()
        return max(strides, default=1) / max(sum(strides) + self.odd, 1)

    def is_hopeful(self, look: int) -> bool:
        """Whether a few lines more may make it sure: it grows, and was seen not long before this look."""
        return (
            not self.dead and not self.bad and self.grown > 0 and self.seen <= 6 and look - self.at < _FRESH
        )


# By grade, and whether the line has a metric: lines that it takes, whether the number must grow evenly, confidence.
_NEEDS: dict[tuple[int, bool], tuple[int, bool, float]] = {
    (BY_ITERATION, True): (2, False, 0.9),
    (BY_ITERATION, False): (4, True, 0.75),
    (BY_PAIR, True): (3, True, 0.8),
    (BY_PAIR, False): (8, True, 0.5),
    (BY_EPOCH, True): (2, True, 0.85),
    (BY_EPOCH, False): (3, True, 0.7),
    (BY_NUMBER, True): (4, True, 0.65),
    (BY_NUMBER, False): (8, True, 0.5),
}


class _Place:
    """Where in lines of one shape a number stands that may count steps."""

    __slots__ = ("epoch", "field", "index", "key", "total")

    def __init__(self, index: int, total: int | None, epoch: int | None, key: bytes, field: Field) -> None:
        self.index, self.total, self.epoch = index, total, epoch
        self.key, self.field = key, field


class _Shape:
    """Lines that are alike. ``headed``: whether an epoch had been begun when they were looked at first."""

    __slots__ = ("headed", "places", "processes")

    def __init__(self, places: list[_Place], processes: tuple[int, ...]) -> None:
        self.places = places
        self.processes = processes  # where numbers of processes stand
        self.headed = False


class Detector:
    """Takes the lines of a rank that no known form reads."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}
        self._fields: dict[bytes, Field] = {}
        self._credit = self._words = _CREDIT
        self._looks = 0
        self._passing = 0  # bytes that still pass
        self._passed_to = 0
        self._heading: int | None = None
        self._header: list[bytes] = []

    def search(self, block: bytes, t_ns: int) -> tuple[int, Form, list[Kept]] | None:
        """The form of lines that count steps, and how much of ``block`` it took to find it; None until it is found."""
        at = 0
        while at < len(block):
            if self._passing:
                found = self._pass(block, at, t_ns)
                if found is not None:
                    return found
                at = self._passed_to
                continue
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            self._credit, kept = self._look(block[at:end], t_ns, self._credit)
            at = end + 1
            if kept is not None:
                return at, *kept
            if self._credit < _NEW_COSTS:
                self._passing = _PASSED_BYTES
        return None

    def _pass(self, block: bytes, at: int, t_ns: int) -> tuple[int, Form, list[Kept]] | None:
        """Let whole lines pass, up to ``_passed_to``, but for those with words of training."""
        stop = len(block)
        if at + self._passing < stop:
            stop = block.find(b"\n", at + self._passing - 1) + 1 or stop
        for begin, end in _with_words(block, at, stop) if self._words >= _NEW_COSTS else ():
            if self._words < _NEW_COSTS:
                break
            self._words, found = self._look(block[begin:end], t_ns, self._words)
            if found is not None:
                self._let_by(end + 1 - at)
                return end + 1, *found
        self._let_by(stop - at)
        self._passed_to = stop
        return None

    def _let_by(self, size: int) -> None:
        self._passing = max(self._passing - size, 0)
        if not self._passing:
            self._credit += _EARNED
            self._words = min(self._words + _WORDS_EARNED, _CREDIT)
            if self._credit < _ENOUGH:
                self._passing = _PASSED_BYTES

    def see(self, line: bytes, t_ns: int, above: int) -> tuple[Form, list[Kept]] | None:
        """A form of a grade higher than ``above``, which has one already; as long as the first credit lasts."""
        if self._credit < _NEW_COSTS:
            return None
        self._credit, found = self._look(line, t_ns, self._credit, above)
        return found

    def _look(
        self, line: bytes, t_ns: int, credit: int, above: int = -1
    ) -> tuple[int, tuple[Form, list[Kept]] | None]:
        """What is left of the credit, and what was found, once it is sure."""
        line = line[:_LINE_BYTES].strip()
        if not line or b"\0" in line:  # nothing, or no text
            return credit - 1, None
        text = forms.squeezed(line)
        runs = forms.runs_of(line)
        shape = runs.sub(b"\0", text)
        known = self._shapes.get(shape)
        if known is None or (self._heading is not None and not known.headed):
            credit -= _NEW_COSTS + len(line) // _BYTES_A_CREDIT
            form = forms.named(line, self._heading) if above < BY_ITERATION else None
            if form is not None:
                reading = form.read(line)
                return credit, (form, [] if reading is None else [(t_ns, reading)])
            if not _is_text(line):
                return credit, None
            if shape == text:
                self._see_header(text)
                return credit, None
            known = self._shapes[shape] = self._analyse(text, runs)
            known.headed = self._heading is not None
            if len(self._shapes) > _MOST_SHAPES:
                for old in list(self._shapes)[: _MOST_SHAPES // 2]:
                    del self._shapes[old]
        else:
            credit -= _SEEN_COSTS
        if len(line) <= forms.HEADING_BYTES:
            heading = forms.epoch_headed(line)
            self._heading = self._heading if heading is None else heading
        return credit, self._follow(line, text, runs, known, t_ns, above) if known.places else None

    # ---- lines of a shape that may count

    def _follow(
        self, line: bytes, text: bytes, runs: re.Pattern[bytes], known: _Shape, t_ns: int, above: int
    ) -> tuple[Form, list[Kept]] | None:
        self._looks += 1
        values = runs.findall(text)
        processes = known.processes
        fields = []
        for place in known.places:
            number = forms.integer(values[place.index])
            if number is None:
                continue
            field = place.field if not processes else self._of_process(place, values, processes)
            epoch = None if place.epoch is None else forms.integer(values[place.epoch])
            total = None if place.total is None else forms.integer(values[place.total])
            if number > _LARGEST or (field.grade == BY_NUMBER and _UNIX_TIME[0] < number < _UNIX_TIME[1]):
                field.dead = True
                continue
            headed = epoch is None and field.grade in (BY_PAIR, BY_ITERATION)
            field.at = self._looks
            field.see(t_ns, (number, self._heading if headed else epoch, total))
            fields.append(field)
        sure = [field for field in fields if field.sure and field.grade > above]
        if not sure:
            return None
        best = max(sure, key=lambda field: (field.grade, field.overall))
        if any(field.grade > best.grade and field.is_hopeful(self._looks) for field in self._fields.values()):
            return None
        return self._form(best, line)

    def _of_process(self, place: _Place, values: list[bytes], processes: tuple[int, ...]) -> Field:
        key = place.key + b"\0" + b"\0".join(values[k] for k in processes)
        found = self._fields.get(key)
        if found is None:
            first = place.field
            found = Field(first.grade, metric=True, suffix=first.suffix, fixed=first.fixed)
            found.need, found.strict, found.confidence = first.need, first.strict, first.confidence
            found.groups = first.groups
            self._keep(key, found)
        return found

    def _form(self, field: Field, line: bytes) -> tuple[Form, list[Kept]] | None:
        """The form that reads lines like ``line``; None where no pattern can."""
        pattern = forms.pattern_of(line, field.groups, field.fixed, field.suffix)
        headed = field.grade in (BY_PAIR, BY_ITERATION) and self._heading is not None
        headed = headed and b"epoch" not in field.groups.values()
        confidence = round(field.confidence * (field.evenness if field.strict else 1.0), 2)
        form = Form(
            forms.GUESSED,
            pattern,
            b"",
            field.grade,
            confidence,
            None,
            Headings(self._heading) if headed else None,
        )
        reading = form.read(line)
        if reading is None or reading[0] != field.last:
            field.dead = True
            return None
        field.need = 2 * field.seen  # where something else counts better now, it is tried again then
        return form, field.kept

    # ---- a shape that is new

    def _see_header(self, text: bytes) -> None:
        """Remember the head of a table that has a column of steps or epochs."""
        columns = [word.lower() for word in _COLUMNS.split(text) if word]
        names = {context.plain(word) for word in columns}
        if len(columns) > 1 and names & (vocabulary.ITERATION | vocabulary.EPOCH) and len(text) < 400:
            self._header = columns

    def _analyse(self, text: bytes, runs: re.Pattern[bytes]) -> _Shape:
        """What lines like ``text`` have that may count steps."""
        if context.is_no_training(text):
            return _Shape([], ())
        found = list(runs.finditer(text))[:_MOST_RUNS]
        texts = [
            text[a:b]
            for a, b in zip([0, *(r.end() for r in found)], [r.start() for r in found], strict=False)
        ]
        texts.append(text[found[-1].end() :])
        words = context.words_of(text)
        metric = bool(words & vocabulary.METRICS)
        column = self._column(text, found)
        processes = tuple(k for k in range(len(found)) if context.is_process(texts[k]))
        epoch: int | None = None
        places: list[_Place] = []
        ahead: set[str] = set()
        for k in range(len(found)):
            ahead |= context.words_of(texts[k])
            if k in processes or not context.stands_alone(texts, found, k):
                continue
            total = k + 1 if k + 1 < len(found) and context.PAIR.fullmatch(texts[k + 1]) else None
            name = column.get(k) or context.name_of(texts, k, total)
            kind = context.kind_of(name)
            if kind is None or context.told_otherwise(ahead, name if kind else ""):
                continue
            if kind == BY_EPOCH:
                epoch = k if epoch is None else epoch
            grade = kind or context.grade_of_number(texts, k, total, epoch)
            if grade in (BY_NUMBER, BY_PAIR) and not metric and context.elsewhere(words, text):
                continue
            after = texts[(total if total is not None else k) + 1]
            suffix = _SUFFIX.match(after.strip())
            tail = suffix[0][:_SUFFIX_BYTES] if suffix is not None else b""
            kind_of = b"%d %d %d" % (grade, total is not None, -1 if epoch is None else epoch)
            key = b"\0".join(
                [*(t.strip().rstrip(b"-+ ") for t in texts[: k + 1]), kind_of, tail, name.encode()]
            )
            field = self._field(key, grade, metric, tail, frozenset(p for p in processes if p < k))
            if not field.groups:
                field.overall = name.startswith(("global", "total_", "num_updates"))
                field.groups = _groups(k, total, epoch if grade > BY_EPOCH else None)
            places.append(_Place(k, total, epoch if grade > BY_EPOCH else None, key, field))
        return _Shape(places, processes)

    def _column(self, text: bytes, found: list[re.Match[bytes]]) -> dict[int, str]:
        """Of a row of a table that has a head: the names of its numbers."""
        if not self._header:
            return {}
        cells = list(re.finditer(rb"[^\s,|]+", text))
        if len(cells) != len(self._header) or any(cell[0].isalpha() for cell in cells[:1]):
            return {}
        starts = {run.start(): k for k, run in enumerate(found)}
        return {
            starts[cell.start()]: context.plain(name)
            for cell, name in zip(cells, self._header, strict=True)
            if cell.start() in starts
        }

    def _field(self, key: bytes, grade: int, metric: bool, tail: bytes, fixed: frozenset[int]) -> Field:
        field = self._fields.get(key)
        if field is None:
            field = Field(grade, metric=metric, suffix=len(tail), fixed=fixed)
            self._keep(key, field)
        return field

    def _keep(self, key: bytes, field: Field) -> None:
        self._fields[key] = field
        if len(self._fields) > _MOST_FIELDS:
            for old in list(self._fields)[: _MOST_FIELDS // 2]:
                del self._fields[old]


def _is_text(line: bytes) -> bool:
    if line.isascii():
        return True
    try:
        line[:-3].decode()  # the cut at its end may go through a character
    except UnicodeDecodeError as error:
        return error.start >= len(line) - 8
    return True


def _with_words(block: bytes, at: int, stop: int) -> list[tuple[int, int]]:
    """Where lines begin and end that have a word of training: step, epoch, loss."""
    found: set[tuple[int, int]] = set()
    for word in (b"tep", b"poch", b"oss"):
        hit = block.find(word, at, stop)
        while hit >= 0:
            end = block.find(b"\n", hit, stop)
            end = stop if end < 0 else end
            found.add((block.rfind(b"\n", at, hit) + 1 or at, end))
            hit = block.find(word, end, stop)
    return sorted(found)


def _groups(index: int, total: int | None, epoch: int | None) -> dict[int, bytes]:
    groups = {index: b"step"}
    if total is not None:
        groups[total] = b"total"
    if epoch is not None and epoch < index:
        groups[epoch] = b"epoch"
    return groups
