"""Reads steps, evaluations and checkpoints from what a rank prints."""

from __future__ import annotations

import re

from . import frameworks
from .bars import TqdmBars
from .custom_pattern import CustomPattern, validate_pattern
from .lines import LINE_BYTES, LineCutter
from .loss import Losses
from .step_counter import MarkThinner, StepCounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .detector import StepDetector
    from .number_series import Kept
    from .step_counter import Mark
    from .step_forms import Reading, StepForm

_BARS = ("tqdm", "lightning")
_FRAMEWORK_CONFIDENCE, _BAR_CONFIDENCE, NAMED_CONFIDENCE = 0.99, 0.9, 0.97
BY_ITERATION = 3  # as in ``forms``, which is imported only once lines have to be read
_BAR_TAIL_BYTES = 1024
_MOST_HITS = 256
_FORM_BYTES = 1024  # of a line, to find its form and to read it
_READ_BYTES = 4096  # as little as a pipe mostly holds, so that no read is a flood
_FLOOD_END_BYTES = 4096
_LONGEST_SPAN_NS = 7 * 24 * 3600 * 10**9


class Scanner:
    """Turns chunks of output into marks.

    One source per rank counts the steps: the job's own pattern, if it has one. Otherwise it is the
    first framework that prints, permanently. Until then it is the best bar of tqdm (see ``bars``), or lines
    that were found to count (see ``detector``). Each step is reported once, in rising order (see
    ``steps.Counter``).
    """

    def __init__(self, pattern: str | None = None) -> None:
        """``pattern`` must have passed :func:`validate_pattern`; :class:`ValueError` otherwise."""
        problem = None if pattern is None else validate_pattern(pattern)
        if problem is not None:
            raise ValueError(problem)
        self._own = None if pattern is None else CustomPattern(pattern)
        self._streams: dict[str, LineCutter] = {}
        self._form: StepForm | None = None
        self._detector: StepDetector | None = None
        self._detects = pattern is None
        self._bars = TqdmBars()
        self._thinner = MarkThinner()
        self.losses = Losses()
        self._counter = StepCounter()
        self._source = ""
        self._wants_steps = True
        self._logged = 0  # lines of metrics of a Trainer without a bar
        self._raw = -1  # the source's own number of the last step
        self._step_ns: int | None = None
        self._save_since: tuple[int, int | None] | None = None
        self._eval_since_ns: int | None = None
        self._lines = 0
        self.first_step: int | None = None

    @property
    def lines(self) -> int:
        """Lines that were read as steps, with those of steps that were done once more."""
        return self._lines + self._counter.redone

    @property
    def last_step(self) -> int | None:
        """The last global step seen."""
        return self._counter.count

    @property
    def form(self) -> tuple[str, float, str | None] | None:
        """What the steps were read from, with the confidence in that, and a pattern that reads the same lines.

        None before the first step.
        """
        if not self._lines:
            return None
        if self._source == "pattern":
            return "pattern", 1.0, None
        if self._active is not None:
            return self._active.name, self._active.confidence, self._active.pattern
        if self._source in _BARS:
            return self._source, _BAR_CONFIDENCE, self._bars.pattern()
        return self._source, _FRAMEWORK_CONFIDENCE, frameworks.own_pattern(self._source)

    @property
    def numbers_are_steps(self) -> bool:
        """Whether the count can be compared with the steps in checkpoint names.

        Not when lines or batches are counted, or epochs were unrolled.
        """
        if self._counter.base:
            return False
        if self._own is not None:
            return not self._own.counts_matches and not self._own.counts_epochs
        if self._active is not None:
            return self._active.plain
        return self._source not in ("tqdm", "lightning") and not self._logged

    def stop_steps(self) -> None:
        """Report no more steps: another source counts them from now on."""
        self._wants_steps = False

    def feed(self, stream: str, data: bytes, t_ns: int) -> list[Mark]:
        """Marks for what ``data``, read at ``t_ns``, adds to ``stream``."""
        lines = self._streams.get(stream)
        if lines is None:
            lines = self._streams[stream] = LineCutter()
        block = lines.feed(data)
        if block:
            self.losses.see(block)
            self._block(block, t_ns)
        # a bar is drawn without an end of line, which comes with the next picture, maybe much later
        if lines.tail and len(lines.tail) < _BAR_TAIL_BYTES and _is_bar(lines.tail):
            self.losses.see(lines.tail)
            self._line(lines.tail, t_ns)
        return self.losses.put_on(self._thinner.take(t_ns))

    def tick(self, t_ns: int) -> list[Mark]:
        """Marks that were held back long enough."""
        return self.losses.put_on(self._thinner.take(t_ns))

    def flush(self, t_ns: int) -> list[Mark]:
        """The rest: nothing more will be fed."""
        for lines in self._streams.values():
            rest = lines.rest()
            if rest:
                self.losses.see(rest)
                self._block(rest, t_ns)
        if self._detector is not None and self._detects and self._wants_steps and not self._source:
            single = self._detector.alone()
            if single is not None:
                self._found(*single)
        return self.losses.put_on(self._thinner.take(t_ns, all_of_them=True))

    def _block(self, block: bytes, t_ns: int) -> None:
        if self._own is not None and self._wants_steps:
            self._own_steps(self._own, block, t_ns)
        search = frameworks.NEEDLES.search
        hit = search(block)
        hits = done = 0
        while hit is not None:
            start = block.rfind(b"\n", 0, hit.start()) + 1
            end = block.find(b"\n", hit.end())
            if end < 0:
                end = len(block)
            if start > done:
                self._others(block[done:start], t_ns)
            line = block[start : min(end, start + LINE_BYTES)]
            if not self._line(line, t_ns):
                self._others(line + b"\n", t_ns)
            done = end + 1
            hits += 1
            if hits == _MOST_HITS:  # a flood: what its end says implies the rest
                end = max(end, len(block) - _FLOOD_END_BYTES)
            hit = search(block, end)
        self._others(block[done:], t_ns)

    def _others(self, block: bytes, t_ns: int) -> None:
        """Lines of no form that is known by its needle: read by the form that was found, or to find one."""
        if not self._wants_steps or not block or not (self._detects or self._active is not None):
            return
        if b"\x1b" in block:
            block = frameworks.ANSI.sub(b"", block)
        at = 0
        while at < len(block):
            form = self._active
            if form is None:
                found = self._its_detector().search(block[at:] if at else block, t_ns)
                if found is None:
                    return
                at += found[0]
                self._found(*found[1:])
                continue
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            if end > at:
                self._by_form(form, block[at : min(end, at + _FORM_BYTES)], t_ns)
            at = end + 1

    @property
    def _active(self) -> StepForm | None:
        """The form that counts the steps, where one was found in the lines."""
        form = self._form
        return form if form is not None and self._source == form.name else None

    def _by_form(self, form: StepForm, line: bytes, t_ns: int) -> None:
        reading = form.read(line) if form.needle in line else None
        if reading is not None:
            if self._its_detector().still_counts(t_ns, reading):
                self._read(form, reading, t_ns)
            else:
                self._drop()
            return
        if form.headings is not None:
            form.headings.see(line)
        if self._detects:
            better = self._its_detector().see(line, t_ns, form.grade)
            if better is not None:
                self._found(*better)

    def _its_detector(self) -> StepDetector:
        if self._detector is None:
            # not before it is needed: many ranks print nothing, or a known form
            from .detector import StepDetector

            self._detector = StepDetector()
        return self._detector

    def _found(self, form: StepForm, kept: list[Kept]) -> None:
        """A form was found: what was read of it so far are steps, too."""
        if self._source in _BARS and not self._finer(form, kept):
            return
        self._form, self._source = form, form.name
        self._detects = form.grade < BY_ITERATION
        marks = []
        for t_ns, reading in kept:
            step = self._count(form, reading)
            if step is not None:
                self._raw, self._step_ns = reading[0], t_ns
                marks.append({"k": "step", "t": t_ns, "n": step, "o": form.name})
        self._thinner.add_late(marks)

    def _drop(self) -> None:
        """The form that was found counts no steps after all; what was reported of it cannot be taken back."""
        self._form, self._source, self._detects = None, "", True
        self._counter, self._lines, self.first_step = StepCounter(), 0, None

    def _finer(self, form: StepForm, kept: list[Kept]) -> bool:
        """Whether lines of ``form`` tell more than the bar that counted until now, which may be one over epochs."""
        return self._source == "tqdm" and form.grade == BY_ITERATION and len(kept) > self._bars.drawn

    def _read(self, form: StepForm, reading: Reading, t_ns: int) -> None:
        step = self._count(form, reading)
        if step is not None:
            self._raw, self._step_ns = reading[0], t_ns
            self._thinner.add({"k": "step", "t": t_ns, "n": step, "o": form.name})

    def _count(self, form: StepForm | None, reading: Reading) -> int | None:
        number, epoch, total = reading
        step = self._counter.see_line(number, epoch, total, None if form is None else form.first_epoch)
        return self._counted(step)

    def _counted(self, step: int | None) -> int | None:
        if step is not None:
            self._lines += 1
            if self.first_step is None:
                self.first_step = step
        return step

    def _own_steps(self, own: CustomPattern, block: bytes, t_ns: int) -> None:
        if b"\x1b" in block:
            block = frameworks.ANSI.sub(b"", block)
        was_slow = own.too_slow
        steps: list[int] = []
        for reading in own.steps(block):
            one = self._count(None, reading)
            if one is not None:
                steps, self._raw, self._step_ns = [*steps[:1], one], reading[0], t_ns
        for step in steps:  # all at one time: the first and the last say it all
            self._source = "pattern"
            self._thinner.add({"k": "step", "t": t_ns, "n": step, "o": "pattern"})
        if own.too_slow and not was_slow:
            text = "the progress pattern takes too long on this output; it is not used any more"
            self._thinner.add({"k": "note", "t": t_ns, "text": text})

    def _line(self, line: bytes, t_ns: int) -> bool:
        """Whether the line is of a known form (if not, its number may be found to count)."""
        if b"\x1b" in line:
            line = frameworks.ANSI.sub(b"", line)
        known = b"checkpoint" in line
        if self._own is None and self._wants_steps:
            known = self._steps(line, t_ns) or known
        if b" [" in line and b"/" in line:
            known = self._bar(line, t_ns) or known
        if b" loss" in line or b"GiB(" in line:
            self._evaluations(line, t_ns)
        elif b"Evaluating on " in line and re.search(frameworks.MEGATRON_EVAL_BEGINS, line) is not None:
            self._eval_since_ns = t_ns
        if b"checkpoint" in line:
            self._checkpoints(line, t_ns)
        if b"'epoch': " in line:
            known = self._trainer(line, t_ns) or known
        return known

    def _steps(self, line: bytes, t_ns: int) -> bool:
        for source, needle, pattern in frameworks.STEPS:
            if needle in line:
                found = re.search(pattern, line)
                if found is not None:
                    self._step(source, int(found[1][:18]), t_ns)
                    return True
        if b"\xe2\x80\xa2" in line:
            bar = frameworks.rich_bar(line)
            if bar is not None:
                epoch, n, total = bar
                self._step("lightning", epoch * total + n, t_ns)
                return True
        return False

    def _bar(self, line: bytes, t_ns: int) -> bool:
        seen = self._bars.see(line, t_ns)
        if seen is None:
            return False
        number, evaluation = seen
        if evaluation is not None:
            self._span("eval", *evaluation)
        if number is not None and self._own is None and self._wants_steps:
            self._step(self._bar_source(), number, t_ns)
        return True

    def _bar_source(self) -> str:
        if self._source == "huggingface":
            return "huggingface"
        return "lightning" if self._bars.lightning else "tqdm"

    def _step(self, source: str, number: int, t_ns: int) -> None:
        if source != self._source:
            if self._source not in ("", "tqdm") and not self._gives_way(source):
                return
            self._source = source
            self._detects = source == "tqdm"
        in_order = (
            source in _BARS or source == "huggingface"
        )  # of which each number below the last is of a new loop
        step = self._counted(self._counter.see(number) if in_order else self._counter.see_line(number))
        if step is None:
            return
        self._raw, self._step_ns = number, t_ns
        self._thinner.add({"k": "step", "t": t_ns, "n": step, "o": source})

    def _gives_way(self, source: str) -> bool:
        """Whether the form that counts was only guessed, and ``source`` is surer."""
        form = self._active
        if form is None or form.confidence >= NAMED_CONFIDENCE:
            return False
        return source not in _BARS or form.grade < BY_ITERATION

    def _trainer(self, line: bytes, t_ns: int) -> bool:
        """The Trainer's metrics have no step: its bar has, and without a bar lines are counted."""
        seconds = frameworks.trainer_eval(line)
        if seconds is not None:
            self._span("eval", t_ns - _span_ns(seconds), t_ns)
            return True
        if not frameworks.is_trainer_log(line):
            return False
        if self._own is None and self._wants_steps:
            if self._source == "tqdm":
                self._source = "huggingface"
            if self._source == "huggingface" or not self._source:
                self._bars.pin_first_plain()
            if not self._bars.seen:
                self._logged += 1
                self._step("huggingface", self._logged, t_ns)
        return True

    def _evaluations(self, line: bytes, t_ns: int) -> None:
        """Evaluations whose line has no length: exact where the step before them was seen.

        nanoGPT evaluates before the step that it names, its kin and torchtitan after it.
        """
        found = re.search(frameworks.NANOGPT_EVAL, line) or re.search(frameworks.TORCHTITAN_EVAL, line)
        if found is not None:
            if self._step_ns is not None and int(found[1][:18]) - self._raw in (0, 1):
                self._span("eval", self._step_ns, t_ns)
        elif self._eval_since_ns is not None and re.search(frameworks.MEGATRON_EVAL_ENDS, line) is not None:
            since, self._eval_since_ns = self._eval_since_ns, None
            self._span("eval", since, t_ns)

    def _checkpoints(self, line: bytes, t_ns: int) -> None:
        found = re.search(frameworks.MEGATRON_SAVED, line)
        if found is not None:
            begun, self._save_since = self._save_since, None
            if begun is not None and begun[1] == self._step_ns:  # else saved during the steps
                self._span("save", begun[0], t_ns)
            self._thinner.add(
                {"k": "saved", "t": t_ns, "n": self._counter.base + int(found[1][:18]), "o": "megatron"}
            )
        elif re.search(frameworks.MEGATRON_SAVE_BEGINS, line) is not None:
            self._save_since = (t_ns, self._step_ns)
        else:
            seconds = frameworks.torchtitan_save(line)
            if seconds is not None:
                self._span("save", t_ns - _span_ns(seconds), t_ns)

    def _span(self, what: str, start_ns: int, end_ns: int) -> None:
        """A span never reaches back over the step that was seen last."""
        start_ns = max(start_ns, self._step_ns or 0)
        if start_ns < end_ns:
            self._thinner.add({"k": "span", "t": start_ns, "e": end_ns, "w": what, "o": "output"})


class OutputSummary:
    """What was read as steps in some output."""

    __slots__ = ("confidence", "first", "form", "last", "marks", "pattern")

    def __init__(self, scanner: Scanner) -> None:
        form = scanner.form
        self.marks = scanner.lines
        self.first, self.last = scanner.first_step, scanner.last_step if form is not None else None
        self.form: str | None = None if form is None else form[0]
        self.confidence = 0.0 if form is None else form[1]
        self.pattern: str | None = None if form is None else form[2]


def read_output(chunks: Iterable[bytes], pattern: str | None = None) -> OutputSummary:
    """What a rank's supervisor would have read as steps, had the rank printed this."""
    scanner = Scanner(pattern)
    t_ns = 0
    for chunk in chunks:
        for start in range(0, len(chunk), _READ_BYTES):
            t_ns += 1_000_000
            scanner.feed("output", chunk[start : start + _READ_BYTES], t_ns)
    scanner.flush(t_ns)
    return OutputSummary(scanner)


def _is_bar(tail: bytes) -> bool:
    return frameworks.ANSI.sub(b"", tail).rstrip().endswith(b"]") and b"/" in tail


def _span_ns(seconds: bytes) -> int:
    try:
        return min(int(float(seconds) * 1e9), _LONGEST_SPAN_NS)
    except (ValueError, OverflowError):
        return 0
