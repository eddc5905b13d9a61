"""tqdm bars, and those of PyTorch Lightning and the Hugging Face Trainer, which are drawn by tqdm.

One bar of a rank counts its steps. A label of anything but training (evaluation, downloads,
loading, maps over a data set) rules a bar out. Among the others, a label of training takes precedence
over no label, and no label over any other. Between equals the longer bar wins as long as the first has
not moved (an outer bar over epochs, and its inner bar over batches). Later, only a bar wins that came
after a finished one and has been moving for longer (training, after the text was prepared).

Epochs: a bar labelled ``Epoch e`` means that ``e`` whole bars precede it. Any other bar that starts
again continues the count (see :class:`steps.Counter`). ``Epoch`` counts from 0, as in Lightning,
unless it is written ``e/m`` or the first one seen is 1.
"""

from __future__ import annotations

import re

_UNIT = rb"(?:its?|steps?|batch(?:es)?|iters?|iterations?|updates?)"
_BAR = (
    rb"\| {0,18}(\d{1,18})/(\d{1,18}|\?) \[[\d:]{1,24}<[\d:?]{1,24}, {1,18}(?:[\d.]{1,24}|\?)(?:"
    + _UNIT
    + rb"/s|s/"
    + _UNIT
    + rb")\b"
)
_BARE = (
    rb"(?:^|[\s:])(\d{1,18})"
    + _UNIT
    + rb" \[[\d:]{1,24}, {1,18}(?:[\d.]{1,24}|\?)(?:"
    + _UNIT
    + rb"/s|s/"
    + _UNIT
    + rb")\b"
)
_RANK = rb"\[[^\]]*\]:?\s*"
_EVAL = rb"(?i)\beval|\bvalid"
_OTHER = (
    rb"(?i)eval|valid|\btest|predict|infer|sanity|generat|sampl|load|fetch|read|\bmap|filter|token|process"
    rb"|prepar|shard|resolv|extract|collat|sav|writ|cach|import|build|pack|group|split|convert|merg|index"
    rb"|comput|compil|captur|calib|quanti|scan|\brunning\b|\b(?!(?:pre-?)?train|learn|fitt|optimi|(?:fine)?-?tun)[a-z]+ing\b|request|\bClass +Images"
)
_ULTRALYTICS = rb"\s*\d{1,18}/\d{1,18}\s+[\d.]{1,18}[GM]B?\s"
_RATE = rb", {1,18}(\d{1,18}(?:\.\d{1,18})?)it/s"
_FAST = 50_000  # a second, of at least as many
_TRAINING = rb"(?i)epoch|train|step|iter|batch|fit|loss"
_EPOCH = rb"(?i)\bepoch[ :=#]{0,18}(\d{1,9})(?!\d)(/\d{1,18})?"
_LIGHTNING = rb"[ ,]v_num=|(?:Validation|Sanity Checking)(?: DataLoader \d{1,9})?: "
_MOST_BARS = 64


class TqdmBar:
    """One bar as it was last drawn."""

    __slots__ = ("first_ns", "grade", "label", "last_ns", "n", "total")

    def __init__(self, label: bytes, grade: int, total: int, t_ns: int) -> None:
        self.label = label
        self.grade = grade
        self.total = total  # 0 when it is not known
        self.n = 0
        self.first_ns = self.last_ns = t_ns


class TqdmBars:
    """Reads bars, and derives from them how far training is."""

    def __init__(self) -> None:
        self.lightning = False
        self._pinned = False
        self._chosen: TqdmBar | None = None
        self._bars: dict[tuple[bytes, int], TqdmBar] = {}
        self._byte_bars: set[tuple[bytes, int]] = set()
        self._eval_since_ns: int | None = None
        self._one_based: bool | None = None

    def pin_first_plain(self) -> None:
        """The rank runs the Hugging Face Trainer: its first bar without a label counts steps."""
        if not self._pinned:
            plain = [bar for bar in self._bars.values() if not bar.label]
            if plain:
                self._chosen = min(plain, key=lambda bar: bar.first_ns)
                self._pinned = True

    @property
    def seen(self) -> bool:
        """Whether any bar that could count steps was drawn."""
        return bool(self._bars)

    @property
    def drawn(self) -> int:
        """How far the bar is that counts the steps."""
        return 0 if self._chosen is None else self._chosen.n

    def pattern(self) -> str:
        """A job's own pattern for the bar that counts the steps."""
        label = b"" if self._chosen is None else self._chosen.label.strip(b" :/")
        head = re.escape(re.split(rb"[\s:]", label)[0]) + b".*" if label else b"^[^|]*"
        epoch = b"(?P<epoch>\\d+).*" if re.match(rb"(?i)epoch\b", label) is not None else b""
        total = rb"/(?P<total>\d+)" if epoch else rb"/\d+"
        return (head[:-2] + rb"\D*" + epoch + rb"\| *(?P<step>\d+)" + total + rb" \[" if epoch else
                head + rb"\| *(?P<step>\d+)" + total + rb" \[").decode("utf-8", "replace")  # fmt: skip

    def see(self, line: bytes, t_ns: int) -> tuple[int | None, tuple[int, int] | None] | None:
        """The step number in ``line`` (before unrolling), and an evaluation that it ends; None where it is no bar."""
        found = re.search(_BAR, line)
        if found is not None:
            n, total = int(found[1]), 0 if found[2] == b"?" else int(found[2])
        else:
            found = re.search(_BARE, line)
            if found is None:
                return (None, None) if b"%|" in line else None
            n, total = int(found[1]), 0
        if re.search(_LIGHTNING, line) is not None:
            self.lightning = True
        label = _label(line[: found.start(1)].rstrip(b" |"))
        if re.match(_ULTRALYTICS, line) is not None:
            return None  # read as a line, with its epoch
        if re.search(_EVAL, label) is not None:
            return None, self._evaluation(label, n, total, t_ns)
        if (label and re.search(_OTHER, label) is not None) or self._counts_bytes(line, label, n, total):
            return None, None
        return self._advance(label, n, total, t_ns), None

    def _counts_bytes(self, line: bytes, label: bytes, n: int, total: int) -> bool:
        """Whether a bar goes as fast as bytes do, and as no training: a download whose unit was not given."""
        rate = re.search(_RATE, line)
        if rate is None or total < _FAST or n == 0:
            return (label, total) in self._byte_bars
        if float(rate[1]) >= _FAST and len(self._byte_bars) < _MOST_BARS:
            self._byte_bars.add((label, total))
        return (label, total) in self._byte_bars

    def _evaluation(self, label: bytes, n: int, total: int, t_ns: int) -> tuple[int, int] | None:
        done = 0 < total <= n
        if self._eval_since_ns is None:
            # the last picture of a bar may be drawn again; only one that moves begins an evaluation
            if not done and not label.startswith(b"Sanity"):
                self._eval_since_ns = t_ns
            return None
        if not done:
            return None
        since, self._eval_since_ns = self._eval_since_ns, None
        return since, t_ns

    def _advance(self, label: bytes, n: int, total: int, t_ns: int) -> int | None:
        bar = self._bar(label, n, total, t_ns)
        if bar is None:
            return None
        bar.n, bar.last_ns = n, t_ns
        if bar is not self._chosen and (self._chosen is None or self._better(bar, self._chosen)):
            self._chosen = bar
        if bar is not self._chosen or n == 0:
            return None
        return self._whole_epochs(label, total) + n

    def _bar(self, label: bytes, n: int, total: int, t_ns: int) -> TqdmBar | None:
        name = re.sub(rb"[\d.]+", b"", label)
        chosen = self._chosen
        if chosen is not None and not label and not chosen.label and not total and n > chosen.total:
            return chosen  # tqdm leaves the total out once it is exceeded
        key = (name, 0 if name else total)
        bar = self._bars.get(key)
        if bar is None and len(self._bars) < _MOST_BARS:
            grade = 1 if not name else 2 if re.search(_TRAINING, name) is not None else 0
            bar = self._bars[key] = TqdmBar(name, grade, total, t_ns)
        if bar is not None and total:
            bar.total = total
        return bar

    def _better(self, bar: TqdmBar, than: TqdmBar) -> bool:
        if self._pinned:
            return False
        if than.n == 0:
            return bar.total > than.total if bar.n == 0 else bar.grade >= than.grade or bar.total > than.total
        if bar.grade != than.grade:
            return bar.grade > than.grade
        came_after = 0 < than.total <= than.n and than.last_ns <= bar.first_ns
        return came_after and bar.last_ns - bar.first_ns > than.last_ns - than.first_ns

    def _whole_epochs(self, label: bytes, total: int) -> int:
        """Steps in the epochs before the one that ``label`` names."""
        epoch = re.search(_EPOCH, label)
        if epoch is None or not total:
            return 0
        number = int(epoch[1])
        if self._one_based is None:
            self._one_based = not self.lightning and number > 0 and (number == 1 or epoch[2] is not None)
        return (number - self._one_based) * total if number else 0


def _label(head: bytes) -> bytes:
    """What names a bar, out of the text before its numbers: without a rank in brackets, the per cent and the bar."""
    rank = re.match(_RANK, head)
    label = head[0 if rank is None else rank.end() :]
    label = label[: label.rfind(b"|")] if b"|" in label else label
    label = label.rstrip()
    if label.endswith(b"%") and label[-2:-1].isdigit():
        label = label[:-1].rstrip(b"0123456789").rstrip()
    return (label[:-1] if label.endswith(b":") else label).strip()
