"""One number in lines of the same shape: how it developed, and when it is accepted as the count of steps."""

from __future__ import annotations

from .step_forms import BY_EPOCH, BY_ITERATION, BY_NUMBER, BY_PAIR

_KEPT = 64
_MOST_STRIDES = 8
_EVEN = 0.8
_FRESH = 64  # looks
_TURN, _BARE_TURN = 8, 16  # lines that must grow, for each that does not

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .line_shapes import Count
    from .step_forms import Reading

    Kept = tuple[int, Reading]


class NumberSeries:
    """One number in lines of the same shape, and how it developed."""

    __slots__ = (
        "at", "bad", "count", "dead", "epoch", "grown", "kept", "last", "need", "odd", "rank", "seen", "since", "start",
        "strict", "strides", "sureness", "total", "twins",
        "varied",
    )  # fmt: skip

    def __init__(self, count: Count) -> None:
        self.count = count
        self.need, self.strict, self.sureness = _NEEDS[count.grade, count.metric]
        self.rank = (count.grade, count.breadth)
        self.kept: list[Kept] = []
        self.strides: dict[int, int] = {}
        self.last = self.start = -1
        self.epoch: int | None = None
        self.total: int | None = None
        self.at = 0  # the look that saw it last
        self.seen = self.grown = self.odd = self.bad = self.since = 0
        self.twins = 0  # lines that hold the same number once more
        self.dead = self.varied = False

    def see(self, t_ns: int, reading: Reading) -> None:
        number, epoch, total = reading
        if total is not None and (number > total or not total):
            self._broken()
            return
        if self.total is not None and total != self.total and (epoch is None or epoch == self.epoch):
            return  # of another loop
        self.total = total
        if self.last >= 0 and number == self.last and epoch == self.epoch:
            return  # another process of the rank prints the same, or a bar is drawn again
        self.seen += 1
        self.varied = self.varied or (number != self.last >= 0)
        if self.last < 0:
            self.start = number
        elif epoch is not None and self.epoch is not None and epoch != self.epoch:
            self._turn(number, epoch > self.epoch)
        elif number > self.last:
            self._grow(number - self.last)
        else:
            # a bare number that goes back while no epoch grows is a state or a code, and counts nothing
            self._turn(number, not self.bare and number <= self.start and self.since >= 2)
        self.last, self.epoch = number, epoch
        self.kept.append((t_ns, reading))
        if len(self.kept) > _KEPT:
            del self.kept[1:-1:2]

    @property
    def bare(self) -> bool:
        """Whether no word names the number, and the line has no metric."""
        return self.count.grade == BY_NUMBER and not self.count.metric

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

    def see_twins(self, values: list[bytes], count: Count, processes: tuple[int, ...]) -> None:
        """Note whether the line has its number once more: it is that of what the line names then."""
        own = (count.index, count.epoch, count.total)
        number = values[count.index]
        for k, value in enumerate(values):
            if value == number and k not in own and k not in processes:
                self.twins += 1
                break

    @property
    def confidence(self) -> float:
        return round(self.sureness * (self.evenness if self.strict else 1.0), 2)

    @property
    def sure(self) -> bool:
        if self.dead or self.seen < self.need or not self.varied or self.turns or self.twins * 2 > self.seen:
            return False
        return not self.strict or self.evenness >= _EVEN

    @property
    def turns(self) -> bool:
        """Whether it fails to grow more often than a count of steps may."""
        return self.bad * (_BARE_TURN if self.bare else _TURN) > self.grown

    @property
    def evenness(self) -> float:
        """How many of the strides were equal: 1 where all were."""
        strides = self.strides.values()
        return max(strides, default=1) / max(sum(strides) + self.odd, 1)

    def is_hopeful(self, look: int) -> bool:
        """Whether a few lines more may make it sure: it grows, and was seen not long before this look."""
        return not self.dead and not self.bad and self.varied and self.seen <= 6 and look - self.at < _FRESH


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
