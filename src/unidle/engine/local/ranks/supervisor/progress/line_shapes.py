"""Lines of the same shape: which of their numbers may count steps, by the words around each."""

from __future__ import annotations

import re

from . import count_context, step_forms, vocabulary
from .step_forms import BY_EPOCH, BY_ITERATION, BY_PAIR

_MOST_RUNS = 16
_SUFFIX_BYTES = 24
_HEADER_BYTES = 400

_SUFFIX = re.compile(rb"[^A-Za-z0-9]*[A-Za-z_]*")
_CUTS = (
    re.compile(rb"(?:[\s,|]|\xe2[\x94-\x96].)+"),
    re.compile(rb"\s*(?:[\t,|]|\xe2[\x94-\x96].|\s{2,})+\s*"),  # where names may be of two words
)
_CELL = re.compile(rb"(?:(?!\xe2[\x94-\x96].)[^\s,|])+")
_MAY_COUNT = re.compile(
    rb"(?i)step|\bit\b|iter|epo|ba?tch|upd|round|\bgen|\bep|schritt|\bpas|durchl|[\xc3-\xdf\xe3-\xed]"
)


class Count:
    """A number of a line that may count steps: its index, and the indexes of its total and its epoch."""

    __slots__ = ("alone", "epoch", "fixed", "grade", "index", "key", "metric", "name", "tail", "total")

    def __init__(self, index: int, total: int | None, epoch: int | None, grade: int, name: str) -> None:
        self.index, self.total, self.epoch = index, total, epoch
        self.grade, self.name = grade, name
        self.metric = False
        self.alone = False  # whether a single line is believed if it has a loss, too
        self.tail = b""  # the text behind it that belongs to its form
        self.fixed: frozenset[int] = frozenset()  # numbers of processes before it
        self.key = b""

    @property
    def groups(self) -> dict[int, bytes]:
        """The names of the groups of a pattern for it, by index."""
        groups = {self.index: b"step"}
        if self.total is not None:
            groups[self.total] = b"total"
        if self.epoch is not None and self.epoch < self.index:
            groups[self.epoch] = b"epoch"
        return groups

    @property
    def breadth(self) -> int:
        """Of two counts in a line, or in lines near each other, that of more breadth is meant: a global step, not a batch."""
        if self.name.startswith("global"):
            return 3
        if self.name.startswith(("total_", "num_updates")) or (self.total is not None and self._is_of_loop):
            return 2
        return 1 if "step" in self.name else 0

    @property
    def _is_of_loop(self) -> bool:
        return self.grade == BY_ITERATION and ("step" in self.name or self.name.startswith("iter"))


class TableHeader:
    """The head of a table: the line of names over rows of numbers."""

    __slots__ = ("_counts", "_heads", "_last")

    def __init__(self) -> None:
        self._heads: list[list[str]] = []  # the names, as it may be cut
        self._counts = False
        self._last = b""  # a line that may be a head, and names no count

    def see(self, line: bytes) -> None:
        """Remember ``line``, which has no number, if it may be the head of a table."""
        if len(line) <= _HEADER_BYTES and count_context.LETTERS.search(line) is not None:
            if _MAY_COUNT.search(line):
                self._read(line)
            else:
                self._last = line

    def _read(self, line: bytes) -> None:
        self._last = b""
        line = line.strip(b" \t|#")
        cut = [
            [count_context.plain(word).replace(" ", "_") for word in cuts.split(line) if word.strip()]
            for cuts in _CUTS
        ]
        heads = [names for names in cut if len(names) > 1]
        counts = any(map(self._have_count, heads))
        if heads and (counts or not self._counts):
            self._heads, self._counts = heads, counts

    def _have_count(self, names: list[str]) -> bool:
        strong = self._are_strong(names)
        return any(
            count_context.kind_of(name) in (BY_ITERATION, BY_EPOCH)
            and (strong or not (name.startswith("batch") or name.endswith("s")))
            for name in names
        )

    @staticmethod
    def _are_strong(names: list[str]) -> bool:
        return any(word in vocabulary.STRONG_METRICS for name in names for word in name.split("_"))

    def columns(self, line: LineParts) -> tuple[dict[int, str], bool]:
        """For a row of a table: the names of its numbers, and whether the head shows that none of them counts steps."""
        if self._last:
            self._read(self._last)
        if not self._heads:
            return {}, False
        cells = list(_CELL.finditer(line.text, len(line.text) - len(line.body)))
        names = next((names for names in self._heads if len(names) == len(cells)), None)
        if not self._counts:
            # the first column of a report has no name
            fits = names is not None or any(len(names) + 1 == len(cells) for names in self._heads)
            return {}, fits and not line.words and len(cells) > 2 and not self._are_strong(self._heads[0])
        if names is None or cells[0][0].isalpha():
            return {}, False
        starts = {run.start(): k for k, run in enumerate(line.found)}
        pairs = zip(cells, names)
        return {starts[cell.start()]: name for cell, name in pairs if cell.start() in starts}, False


class LineParts:
    """A line: its numbers (``found``), and the texts before, between and behind them."""

    __slots__ = (
        "begin",
        "body",
        "epoch",
        "found",
        "metric",
        "near",
        "processes",
        "strong",
        "text",
        "texts",
        "words",
    )

    def __init__(self, text: bytes, runs: re.Pattern[bytes]) -> None:
        prefix = step_forms.prefix_of(text)
        self.text = text
        self.body = text[prefix:]
        self.found = list(runs.finditer(text))[:_MOST_RUNS]
        ends = [0, *(run.end() for run in self.found)]
        starts = [run.start() for run in self.found]
        self.texts = [text[a:b] for a, b in zip(ends, starts)]
        self.texts.append(text[ends[-1] :])
        self.near = list(self.texts)  # the same, without what a logger puts before
        self.begin = sum(
            start < prefix for start in starts
        )  # the first number behind what a logger puts before
        if ends[self.begin] < prefix:
            self.near[self.begin] = (
                text[prefix : starts[self.begin]] if self.begin < len(starts) else self.body
            )
        self.processes = tuple(
            k for k, run in enumerate(self.found) if count_context.is_process(self.texts[k], run[0])
        )
        self.words = count_context.words_of(self.body)
        self.metric = bool(self.words & vocabulary.METRICS)
        self.strong = bool(self.words & vocabulary.STRONG_METRICS)
        self.epoch: int | None = None  # where its epoch stands

    def ahead(self, k: int) -> set[str]:
        """Words before the number at ``k`` that tell what it counts."""
        words = count_context.words_ahead(self.texts[k])
        for text in self.texts[:k]:
            words |= count_context.words_ahead(text, of_another=True)
        return words

    def words_of_prefix(self) -> set[str]:
        """The words of what a logger puts before."""
        return count_context.words_ahead(self.text[: len(self.text) - len(self.body)])

    def leads(self, k: int) -> bool:
        """Whether the number is the first of its line, but for times, processes and the epoch."""
        return all(
            j in self.processes or j == self.epoch or count_context.is_time(run[0])
            for j, run in enumerate(self.found[:k])
            if j >= self.begin
        )

    def may_count(self, k: int, kind: int, grade: int) -> bool:
        """Of a line without a metric: whether the number at ``k`` may count steps all the same."""
        if kind:
            crowded = kind == BY_EPOCH and not count_context.is_terse(self.words, named=True)
            return not crowded and not count_context.is_of_another_trade(self.words)
        if count_context.elsewhere(self.words, self.body):
            return False
        if grade == BY_ITERATION:
            return True  # a pair in an epoch
        if not self.words:  # a row of numbers
            return self.leads(k) or sum(b"." in run[0] for run in self.found) > 1
        return (
            self.leads(k)
            and count_context.is_terse(self.words)
            and not count_context.names_path(self.texts[k + 1])
        )


def counts_of(
    text: bytes, runs: re.Pattern[bytes], header: TableHeader
) -> tuple[list[Count], tuple[int, ...]]:
    """What lines like ``text`` have that may count steps, and where numbers of processes stand."""
    if count_context.is_no_training(text):
        return [], ()
    line = LineParts(text, runs)
    column, rules_out = header.columns(line)
    counts: list[Count] = []
    if rules_out or (not line.strong and count_context.is_build_step(line.body)):
        return counts, line.processes
    for k in range(line.begin, len(line.found)):
        if k in line.processes or not count_context.stands_alone(line.near, line.found, k, line.metric):
            continue
        count = _count_of(line, k, column.get(k))
        if count is not None:
            counts.append(count)
    return counts, line.processes


def _count_of(line: LineParts, k: int, column: str | None) -> Count | None:
    """The number at ``k`` of a line, if it may count steps."""
    texts, found = line.texts, line.found
    total = k + 1 if k + 1 < len(found) and count_context.PAIR.fullmatch(texts[k + 1]) else None
    name = column or count_context.name_of(line.near, found, k, total)
    kind = count_context.kind_of(name)
    if kind is None:
        return None
    ahead = line.ahead(k)
    if count_context.told_otherwise(ahead, name if kind else ""):
        return None
    if kind == BY_EPOCH and line.epoch is None:
        line.epoch = k
    grade = kind or count_context.grade_of_number(texts, k, total, line.epoch)
    believed = line.metric if kind else line.strong
    if not believed and not line.may_count(k, kind, grade):
        return None
    count = Count(k, total, line.epoch if grade > BY_EPOCH else None, grade, name)
    count.metric = believed
    count.alone = (
        bool(kind)
        and line.strong
        and count_context.is_plain(line.words, ahead - line.words_of_prefix(), name)
    )
    count.fixed = frozenset(p for p in line.processes if p < k)
    count.tail = _tail(texts[(total if total is not None else k) + 1], named=bool(kind) and line.metric)
    kind_of = b"%d %d %d" % (grade, total is not None, -1 if line.epoch is None else line.epoch)
    before = (text.strip().rstrip(b"-+ ") for text in texts[: k + 1])
    count.key = b"\0".join([*before, kind_of, count.tail, name.encode()])
    return count


def _tail(after: bytes, named: bool) -> bytes:
    """The text after a count that identifies lines of its form. For a ``named`` count, text without letters is left out."""
    suffix = _SUFFIX.match(after.strip())
    tail = suffix[0][:_SUFFIX_BYTES] if suffix is not None else b""
    return b"" if named and not count_context.LETTERS.search(tail) else tail


def is_headed(grade: int) -> bool:
    """Whether a count of this grade is one of an epoch that stands in a line before it."""
    return grade in (BY_PAIR, BY_ITERATION)
