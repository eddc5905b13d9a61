"""Reads steps, evaluations and checkpoints from what a rank prints."""

from __future__ import annotations

import re

from . import patterns
from .bars import Bars
from .lines import LINE_BYTES, Lines
from .own import OwnPattern, validate_pattern
from .steps import Counter, Thinner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .steps import Mark

_BAR_TAIL_BYTES = 1024
_MOST_HITS = 256
_FLOOD_END_BYTES = 4096
_LONGEST_SPAN_NS = 7 * 24 * 3600 * 10**9


class Scanner:
    """Turns chunks of output into marks.

    One source per rank counts the steps: the job's own pattern where there is one; otherwise the
    first framework that speaks, for good; until then the best bar of tqdm (see ``bars``). Steps
    are told once each and only upwards (see ``steps.Counter``).
    """

    def __init__(self, pattern: str | None = None) -> None:
        """``pattern`` must have passed :func:`validate_pattern`; :class:`ValueError` otherwise."""
        problem = None if pattern is None else validate_pattern(pattern)
        if problem is not None:
            raise ValueError(problem)
        self._own = None if pattern is None else OwnPattern(pattern)
        self._streams: dict[str, Lines] = {}
        self._bars = Bars()
        self._thinner = Thinner()
        self._counter = Counter()
        self._source = ""
        self._wants_steps = True
        self._logged = 0  # lines of metrics of a Trainer without a bar
        self._raw = -1  # the source's own number of the last step
        self._step_ns: int | None = None
        self._save_since: tuple[int, int | None] | None = None
        self._eval_since_ns: int | None = None

    @property
    def last_step(self) -> int | None:
        """The last global step seen."""
        return self._counter.count

    @property
    def numbers_are_steps(self) -> bool:
        """Whether the count can be compared with the steps in checkpoint names.

        Not when lines or batches are counted, or epochs were unrolled.
        """
        if self._counter.base:
            return False
        if self._own is not None:
            return not self._own.counts_matches
        return self._source not in ("tqdm", "lightning") and not self._logged

    def stop_steps(self) -> None:
        """Somebody else counts the steps from now on."""
        self._wants_steps = False

    def feed(self, stream: str, data: bytes, t_ns: int) -> list[Mark]:
        """Marks for what ``data``, read at ``t_ns``, adds to ``stream``."""
        lines = self._streams.get(stream)
        if lines is None:
            lines = self._streams[stream] = Lines()
        block = lines.feed(data)
        if block:
            self._block(block, t_ns)
        # a bar is drawn without an end of line, which comes with the next picture, maybe much later
        if lines.tail and len(lines.tail) < _BAR_TAIL_BYTES and _is_bar(lines.tail):
            self._line(lines.tail, t_ns)
        return self._thinner.take(t_ns)

    def tick(self, t_ns: int) -> list[Mark]:
        """Marks that were held back long enough."""
        return self._thinner.take(t_ns)

    def flush(self, t_ns: int) -> list[Mark]:
        """The rest: nothing more will be fed."""
        for lines in self._streams.values():
            rest = lines.rest()
            if rest:
                self._block(rest, t_ns)
        return self._thinner.take(t_ns, all_of_them=True)

    def _block(self, block: bytes, t_ns: int) -> None:
        if self._own is not None and self._wants_steps:
            self._own_steps(self._own, block, t_ns)
        search = patterns.NEEDLES.search
        hit = search(block)
        hits = 0
        while hit is not None:
            start = block.rfind(b"\n", 0, hit.start()) + 1
            end = block.find(b"\n", hit.end())
            if end < 0:
                end = len(block)
            self._line(block[start : min(end, start + LINE_BYTES)], t_ns)
            hits += 1
            if hits == _MOST_HITS:  # a flood: what its end says implies the rest
                end = max(end, len(block) - _FLOOD_END_BYTES)
            hit = search(block, end)

    def _own_steps(self, own: OwnPattern, block: bytes, t_ns: int) -> None:
        if b"\x1b" in block:
            block = patterns.ANSI.sub(b"", block)
        was_slow = own.too_slow
        numbers = own.steps(block)
        for number in numbers[:-1]:
            self._counter.see(number)  # all at one time: one mark says it all
        if numbers:
            self._step("pattern", numbers[-1], t_ns)
        if own.too_slow and not was_slow:
            text = "the progress pattern takes too long on this output; it is not used any more"
            self._thinner.add({"k": "note", "t": t_ns, "text": text})

    def _line(self, line: bytes, t_ns: int) -> None:
        if b"\x1b" in line:
            line = patterns.ANSI.sub(b"", line)
        if self._own is None and self._wants_steps:
            self._steps(line, t_ns)
        if b" [" in line and b"/" in line:
            self._bar(line, t_ns)
        if b" loss" in line or b"GiB(" in line:
            self._evaluations(line, t_ns)
        elif b"Evaluating on " in line and re.search(patterns.MEGATRON_EVAL_BEGINS, line) is not None:
            self._eval_since_ns = t_ns
        if b"checkpoint" in line:
            self._checkpoints(line, t_ns)
        if b"'epoch': " in line:
            self._trainer(line, t_ns)

    def _steps(self, line: bytes, t_ns: int) -> None:
        for source, needle, pattern in patterns.STEPS:
            if needle in line:
                found = re.search(pattern, line)
                if found is not None:
                    self._step(source, int(found[1][:18]), t_ns)
                    return
        if b"\xe2\x80\xa2" in line:
            found = re.search(patterns.RICH_BAR, line)
            if found is not None:
                epoch, n, total = (int(group[:9]) for group in found.groups())
                self._step("lightning", epoch * total + n, t_ns)

    def _bar(self, line: bytes, t_ns: int) -> None:
        number, evaluation = self._bars.see(line, t_ns)
        if evaluation is not None:
            self._span("eval", *evaluation)
        if number is not None and self._own is None and self._wants_steps:
            self._step(self._bar_source(), number, t_ns)

    def _bar_source(self) -> str:
        if self._source == "huggingface":
            return "huggingface"
        return "lightning" if self._bars.lightning else "tqdm"

    def _step(self, source: str, number: int, t_ns: int) -> None:
        if source != self._source:
            if self._source not in ("", "tqdm"):
                return
            self._source = source
        step = self._counter.see(number)
        if step is None:
            return
        self._raw, self._step_ns = number, t_ns
        self._thinner.add({"k": "step", "t": t_ns, "n": step, "o": source})

    def _trainer(self, line: bytes, t_ns: int) -> None:
        """The Trainer's metrics have no step: its bar has, and without a bar lines are counted."""
        found = re.search(patterns.HF_EVAL, line)
        if found is not None:
            self._span("eval", t_ns - _span_ns(found[1]), t_ns)
        elif re.search(patterns.HF_TRAIN, line) is not None and self._own is None and self._wants_steps:
            if self._source == "tqdm":
                self._source = "huggingface"
            if self._source == "huggingface" or not self._source:
                self._bars.pin_first_plain()
            if not self._bars.seen:
                self._logged += 1
                self._step("huggingface", self._logged, t_ns)

    def _evaluations(self, line: bytes, t_ns: int) -> None:
        """Evaluations whose line has no length: exact where the step before them was seen.

        nanoGPT evaluates before the step that it names, its kin and torchtitan after it.
        """
        found = re.search(patterns.NANOGPT_EVAL, line) or re.search(patterns.TORCHTITAN_EVAL, line)
        if found is not None:
            if self._step_ns is not None and int(found[1][:18]) - self._raw in (0, 1):
                self._span("eval", self._step_ns, t_ns)
        elif self._eval_since_ns is not None and re.search(patterns.MEGATRON_EVAL_ENDS, line) is not None:
            since, self._eval_since_ns = self._eval_since_ns, None
            self._span("eval", since, t_ns)

    def _checkpoints(self, line: bytes, t_ns: int) -> None:
        found = re.search(patterns.MEGATRON_SAVED, line)
        if found is not None:
            begun, self._save_since = self._save_since, None
            if begun is not None and begun[1] == self._step_ns:  # else saved beside the steps
                self._span("save", begun[0], t_ns)
            self._thinner.add(
                {"k": "saved", "t": t_ns, "n": self._counter.base + int(found[1][:18]), "o": "megatron"}
            )
        elif re.search(patterns.MEGATRON_SAVE_BEGINS, line) is not None:
            self._save_since = (t_ns, self._step_ns)
        else:
            found = re.search(patterns.TORCHTITAN_SAVED, line)
            if found is not None:
                self._span("save", t_ns - _span_ns(found[1]), t_ns)

    def _span(self, what: str, start_ns: int, end_ns: int) -> None:
        """A span never reaches back over the step that was seen last."""
        start_ns = max(start_ns, self._step_ns or 0)
        if start_ns < end_ns:
            self._thinner.add({"k": "span", "t": start_ns, "e": end_ns, "w": what, "o": "output"})


def _is_bar(tail: bytes) -> bool:
    return patterns.ANSI.sub(b"", tail).rstrip().endswith(b"]") and b"/" in tail


def _span_ns(seconds: bytes) -> int:
    try:
        return min(int(float(seconds) * 1e9), _LONGEST_SPAN_NS)
    except (ValueError, OverflowError):
        return 0
