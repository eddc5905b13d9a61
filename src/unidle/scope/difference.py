"""What changed between two profiles: windows, attempts, or ranks. Shares are compared, not sums. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Final, Literal

from unidle.scope.merge import Interned
from unidle.scope.model import Frame, FrameKind, Profile, Sample, State

Hint = Literal["clear", "likely", "unclear"]

CLEAR_Z: Final = 4.0
LIKELY_Z: Final = 2.5
FEWEST: Final = 5  # samples on both sides together, below which no change is more than unclear


@dataclass(frozen=True, slots=True)
class Amount:
    """What one side spent: nanoseconds, samples, and the share of its whole (0 to 1)."""

    ns: int = 0
    samples: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class ShareChange:
    """One stack, function or line on both sides. ``frames`` is the stack root first, or the one frame in question.

    ``z`` is the two-proportion statistic over sample counts, ``hint`` its reading. Samples of one thread follow each
    other, so they are not independent and this is a hint, not a test.
    """

    frames: tuple[Frame, ...]
    before: Amount
    after: Amount
    z: float
    hint: Hint

    @property
    def points(self) -> float:
        """The change of the share in percentage points; positive where there is more of it afterwards."""
        return 100 * (self.after.share - self.before.share)


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """Changes sorted by size, largest first: by whole stack, by function and by line (each with all that it calls)."""

    before: Amount
    after: Amount
    stacks: tuple[ShareChange, ...]
    functions: tuple[ShareChange, ...]
    lines: tuple[ShareChange, ...]


Choice = Callable[[Sample], bool]
_Sums = dict[int, tuple[int, int]]


def difference(
    before: Profile,
    after: Profile,
    *,
    states: Collection[State] = ("on", "off", "runq"),
    of_before: Choice | None = None,
    of_after: Choice | None = None,
    top: int | None = 100,
) -> ProfileDifference:
    """Compares what ``before`` and ``after`` spent in ``states``, by nanoseconds.

    ``of_before`` and ``of_after`` choose samples, so that two ranks or threads of one profile can be compared with each
    other. ``top`` bounds each list (None: all). A function counts once per stack, however often it recurs.
    """
    interned = Interned()
    left = _by_stack(before, interned, states, of_before)
    right = _by_stack(after, interned, states, of_after)
    whole = _whole(left), _whole(right)
    frames, stacks = tuple(interned.frames), tuple(interned.stacks)

    def changes(a: _Sums, b: _Sums, shown: Callable[[int], tuple[Frame, ...]]) -> tuple[ShareChange, ...]:
        rows = [_change(shown(n), a.get(n, (0, 0)), b.get(n, (0, 0)), *whole) for n in {**a, **b}]
        rows.sort(key=_by_size)
        return tuple(rows if top is None else rows[:top])

    functions, kinds = _functions(frames)
    return ProfileDifference(
        before=_amount(whole[0], whole[0]),
        after=_amount(whole[1], whole[1]),
        stacks=changes(left, right, lambda n: tuple(frames[frame] for frame in stacks[n])),
        functions=changes(
            _by_frame(left, stacks, functions), _by_frame(right, stacks, functions), lambda n: (kinds[n],)
        ),
        lines=changes(
            _by_frame(left, stacks, range(len(frames))),
            _by_frame(right, stacks, range(len(frames))),
            lambda n: (frames[n],),
        ),
    )


def _by_size(change: ShareChange) -> tuple[float, tuple[tuple[FrameKind, str, str, int], ...]]:
    return -abs(change.points), tuple((f.kind, f.function, f.file, f.line) for f in change.frames[-1:])


def _by_stack(
    profile: Profile, interned: Interned, states: Collection[State], choice: Choice | None
) -> _Sums:
    stacks = interned.add(profile)
    sums: _Sums = {}
    for sample in profile.samples:
        if sample.state in states and (choice is None or choice(sample)):
            ns, count = sums.get(stacks[sample.stack], (0, 0))
            sums[stacks[sample.stack]] = (ns + sample.ns, count + sample.count)
    return sums


def _functions(frames: Iterable[Frame]) -> tuple[list[int], list[Frame]]:
    """By frame the number of its function, and each function as a frame without a line."""
    known: dict[Frame, int] = {}
    numbers = [known.setdefault(Frame(f.kind, f.function, f.file, 0, f.module), len(known)) for f in frames]
    return numbers, list(known)


def _by_frame(
    sums: _Sums, stacks: tuple[tuple[int, ...], ...], numbers: Mapping[int, int] | range | list[int]
) -> _Sums:
    found: _Sums = {}
    for stack, (ns, count) in sums.items():
        for n in {numbers[frame] for frame in stacks[stack]}:
            old_ns, old_count = found.get(n, (0, 0))
            found[n] = (old_ns + ns, old_count + count)
    return found


def _whole(sums: _Sums) -> tuple[int, int]:
    return sum(ns for ns, _ in sums.values()), sum(count for _, count in sums.values())


def _amount(part: tuple[int, int], whole: tuple[int, int]) -> Amount:
    return Amount(*part, share=part[0] / whole[0] if whole[0] else 0.0)


def _change(
    frames: tuple[Frame, ...],
    a: tuple[int, int],
    b: tuple[int, int],
    whole_a: tuple[int, int],
    whole_b: tuple[int, int],
) -> ShareChange:
    z = two_proportions(a[1], whole_a[1], b[1], whole_b[1])
    hint: Hint = "unclear"
    if a[1] + b[1] >= FEWEST and abs(z) >= LIKELY_Z:
        hint = "clear" if abs(z) >= CLEAR_Z else "likely"
    return ShareChange(frames, _amount(a, whole_a), _amount(b, whole_b), z, hint)


def two_proportions(hits_a: int, of_a: int, hits_b: int, of_b: int) -> float:
    """The statistic of the pooled two-proportion test: how many standard errors ``b`` lies above ``a``; 0 without data."""
    if of_a <= 0 or of_b <= 0:
        return 0.0
    pooled = (hits_a + hits_b) / (of_a + of_b)
    error = sqrt(max(0.0, pooled * (1 - pooled)) * (1 / of_a + 1 / of_b))
    return (hits_b / of_b - hits_a / of_a) / error if error > 0 else 0.0
