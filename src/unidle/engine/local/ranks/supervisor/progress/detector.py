"""Finds the number that counts steps, in lines of the same shape.

Lines have the same shape if they differ only in their numbers. A whole number in such lines that keeps
growing may count steps. The words around it are evidence for or against that, and so are words of training
(loss, lr, ...) in the line. The evidence decides how many lines it takes until the number is accepted. The
lines before are kept (a bounded number), so that their steps are not lost.

The cost of the search is bounded, too: each line that is examined uses up credit. Without credit, lines pass
unexamined until a fixed number of bytes is over. Lines with words of training have a credit of their own.
All of this depends on the output alone, not on when it is read.
"""

from __future__ import annotations

import math
import re

from . import step_forms
from .line_shapes import Count, TableHeader, counts_of, is_headed
from .loss import loss_in
from .number_series import NumberSeries
from .step_forms import BY_EPOCH, BY_ITERATION, BY_NUMBER, Headings, StepForm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .number_series import Kept
    from .step_forms import Reading

_LINE_BYTES = 1024
_MOST_SHAPES = 512
_MOST_FIELDS = 256
_MOST_SINGLE = 8
_LARGEST = 10**12
_UNIX_TIME = (1_300_000_000, 2_200_000_000)

_CREDIT = 6_000  # for the first lines
_SEEN_COSTS, _NEW_COSTS = 3, 50  # about 2 us each
_BYTES_A_CREDIT = 16
_PASSED_BYTES = 32 * 1024  # of lines that pass once there is no credit left
_ENOUGH = 120  # to look at some lines that follow each other
_EARNED, _WORDS_EARNED = 8, 24  # by that


_NUMBER = re.compile(rb"(?<![A-Za-z@_-])\d")  # a figure, not the end of a name


class _Place:
    """Where in lines of one shape a number stands that may count steps."""

    __slots__ = ("count", "field")

    def __init__(self, count: Count, field: NumberSeries) -> None:
        self.count, self.field = count, field


class _Shape:
    """Lines of the same shape. ``headed``: whether an epoch had begun when the first of them was examined."""

    __slots__ = ("headed", "places", "processes")

    def __init__(self, places: list[_Place], processes: tuple[int, ...]) -> None:
        self.places = places
        self.processes = processes  # where numbers of processes stand
        self.headed = False


class StepDetector:
    """Takes the lines of a rank that no known form reads."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}
        self._fields: dict[bytes, NumberSeries] = {}
        self._credit = self._words = _CREDIT
        self._looks = 0
        self._passing = 0  # bytes that still pass
        self._passed_to = 0
        self._heading: int | None = None
        self._header = TableHeader()
        self._single: list[tuple[NumberSeries, bytes]] = []
        self._weak: NumberSeries | None = None  # the bare number that was found last

    def search(self, block: bytes, t_ns: int) -> tuple[int, StepForm, list[Kept]] | None:
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

    def _pass(self, block: bytes, at: int, t_ns: int) -> tuple[int, StepForm, list[Kept]] | None:
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

    def see(self, line: bytes, t_ns: int, above: int) -> tuple[StepForm, list[Kept]] | None:
        """A form of a grade higher than ``above``, which has one already; as long as the first credit lasts."""
        if self._credit < _NEW_COSTS:
            return None
        self._credit, found = self._look(line, t_ns, self._credit, above)
        return found

    def _look(
        self, line: bytes, t_ns: int, credit: int, above: int = -1
    ) -> tuple[int, tuple[StepForm, list[Kept]] | None]:
        """What is left of the credit, and what was found, once it is sure."""
        line = line[:_LINE_BYTES].strip()
        if not line or b"\0" in line:  # nothing, or no text
            return credit - 1, None
        text = step_forms.squeezed(line)
        runs = step_forms.runs_of(line)
        shape = runs.sub(b"\0", text)
        known = self._shapes.get(shape)
        if known is None or (self._heading is not None and not known.headed):
            credit -= _NEW_COSTS + len(line) // _BYTES_A_CREDIT
            form = step_forms.named(line, self._heading) if above < BY_ITERATION else None
            if form is not None:
                reading = form.read(line)
                return credit, (form, [] if reading is None else [(t_ns, reading)])
            if not _is_text(line):
                return credit, None
            if self._is_header(line):
                return credit, None
            known = self._shapes[shape] = self._analyse(text, runs)
            known.headed = self._heading is not None
            if len(self._shapes) > _MOST_SHAPES:
                for old in list(self._shapes)[: _MOST_SHAPES // 2]:
                    del self._shapes[old]
        else:
            credit -= _SEEN_COSTS
        if len(line) <= step_forms.HEADING_BYTES:
            heading = step_forms.epoch_headed(line)
            self._heading = self._heading if heading is None else heading
        return credit, self._follow(line, text, runs, known, t_ns, above) if known.places else None

    # ---- lines of a shape that may count

    def _follow(
        self, line: bytes, text: bytes, runs: re.Pattern[bytes], known: _Shape, t_ns: int, above: int
    ) -> tuple[StepForm, list[Kept]] | None:
        self._looks += 1
        values = runs.findall(text)
        fields = []
        for place in known.places:
            count = place.count
            number = step_forms.integer(values[count.index])
            if number is None:
                continue
            field = place.field if not known.processes else self._of_process(count, values, known.processes)
            epoch = None if count.epoch is None else step_forms.integer(values[count.epoch])
            total = None if count.total is None else step_forms.integer(values[count.total])
            if number > _LARGEST or (
                count.grade in (BY_NUMBER, BY_EPOCH) and _UNIX_TIME[0] < number < _UNIX_TIME[1]
            ):
                field.dead = True
                continue
            if epoch is None and is_headed(count.grade):
                epoch = self._heading
            field.at = self._looks
            field.see(t_ns, (number, epoch, total))
            if not count.metric:
                field.see_twins(values, count, known.processes)
            fields.append(field)
        self._note_single(line, fields)
        sure = [field for field in fields if field.sure and field.rank[0] > above]
        if not sure:
            return None
        best = max(sure, key=lambda field: field.rank)
        if any(field.rank > best.rank and field.is_hopeful(self._looks) for field in self._fields.values()):
            return None
        self._weak = best if best.bare and not known.processes else None
        return self._form(best, line)

    def still_counts(self, t_ns: int, reading: Reading) -> bool:
        """Whether the number found last is still a count of steps after ``reading``: a bare one that cycles is not."""
        field = self._weak
        if field is None:
            return True
        field.see(t_ns, reading)
        field.dead = field.dead or field.turns
        return not field.dead

    def _note_single(self, line: bytes, fields: list[NumberSeries]) -> None:
        """Keep a line that is believed where no other is like it: ``step 3 loss 0.5``."""
        named = [field for field in fields if field.seen == 1 and field.count.alone]
        if named and len(self._single) < _MOST_SINGLE:
            loss = loss_in(line)
            if loss is not None and math.isfinite(loss):
                self._single.append((max(named, key=lambda field: field.rank), line))

    def _of_process(self, count: Count, values: list[bytes], processes: tuple[int, ...]) -> NumberSeries:
        key = count.key + b"\0" + b"\0".join(values[k] for k in processes)
        field = self._fields.get(key)
        if field is None:
            field = self._fields[key] = NumberSeries(count)
            self._bound()
        return field

    def _form(self, field: NumberSeries, line: bytes) -> tuple[StepForm, list[Kept]] | None:
        """The form that reads lines like ``line``; None where no pattern can."""
        count = field.count
        groups = count.groups
        pattern = step_forms.pattern_of(line, groups, count.fixed, len(count.tail))
        headed = is_headed(count.grade) and self._heading is not None and b"epoch" not in groups.values()
        headings = Headings(self._heading) if headed else None
        spaced = step_forms.runs_of(line) is step_forms.RUN
        form = StepForm(
            step_forms.GUESSED, pattern, b"", count.grade, field.confidence, None, headings, spaced
        )
        reading = form.read(line)
        if reading is None or reading[0] != field.last:
            field.dead = True
            return None
        field.need = 2 * field.seen  # where something else counts better now, it is tried again then
        return form, field.kept

    def alone(self) -> tuple[StepForm, list[Kept]] | None:
        """At the end of output in which nothing was sure: the form of its one line with a step and a loss."""
        single = [(field, line) for field, line in self._single if field.seen == 1 and not field.dead]
        return self._form(*single[0]) if len(single) == 1 else None

    # ---- a shape that is new

    def _is_header(self, line: bytes) -> bool:
        """Whether a line of no number (but for those of a logger) is a new one; it may be the head of a table."""
        body = line[step_forms.prefix_of(line) :]
        if _NUMBER.search(body) is not None:
            return False
        self._header.see(body)
        return True

    def _analyse(self, text: bytes, runs: re.Pattern[bytes]) -> _Shape:
        counts, processes = counts_of(text, runs, self._header)
        return _Shape([_Place(count, self._field(count)) for count in counts], processes)

    def _field(self, count: Count) -> NumberSeries:
        field = self._fields.get(count.key)
        if field is None:
            field = self._fields[count.key] = NumberSeries(count)
            self._bound()
        return field

    def _bound(self) -> None:
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
