"""Which lines of code leak memory, and how fast: not caches that fill, averages that move, or what a step gives back.

A look is cut into parts, and of each only the least that was live counts (its floor). What a step takes and gives back
is not in it, nor what waits for the garbage collector. Where the floors rise until the end there is a leak, or a cache
that is larger than the look is long. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from unidle.scope.code_place import CodePlace, place_of
from unidle.scope.model import Frame, Moment, Profile
from unidle.scope.rules import is_user_file

PARTS: Final = 6
LEAST_BYTES: Final = 256 << 10  # that a line has to grow by in a look
LEAST_BYTES_S: Final = 8_000  # under it a process needs more than a day for half a gigabyte
LEAST_BYTES_STEP: Final = 1_000  # a list of losses, a line of a log
_LEAST_S: Final = 2.0  # of less nothing is said
_LEAST_PIECES: Final = 3
_SHORT_S: Final = 5.0  # of a window cut shorter more is asked
_MOST_RISES: Final = PARTS - 1
_FEW: Final = 24  # pieces that come so seldom need not come in every part
_UNKNOWN: Final = CodePlace("(unknown)")
PAGES: Final = "pages"
IMPORTS: Final = "<frozen importlib._bootstrap>"
HEAP: Final = "heap"  # pages too, but of the heap: it grows where it is full, not where something is kept


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """A line whose memory grows until the end of the look. ``floors``: the least that was live in each part of it."""

    place: CodePlace
    device: str  # as in `Held`
    kind: str  # as in `Cut.what`, or "heap"
    bytes_s: float
    pieces_s: float
    bytes_step: float | None  # None: no steps were seen
    floors: tuple[int, ...]
    seconds: float  # that the floors are of
    stacks: tuple[int, ...]


def kind_of(frames: Sequence[Frame], device: str) -> str:
    """Whose allocator it was, by the name that its probes have (see :class:`unidle.scope.model.Truncation`)."""
    if device == PAGES:
        return HEAP if any("sbrk" in frame.function for frame in frames[-2:]) else PAGES
    last = " ".join(frame.function for frame in frames[-2:])
    if "CachingAllocator" in last:
        return "caching allocator"
    if "cudaMalloc" in last or "cudaHostAlloc" in last:
        return "cuda memory"
    if "cuMem" in last:
        return "cuda driver memory"
    return "tensor memory" if "alloc_cpu" in last else "malloc"


def growths_of(profile: Profile, steps_s: float | None = None) -> list[MemoryGrowth]:
    """The lines that grow, fastest first. ``steps_s``: steps of training a second, where they are known."""
    rows: dict[tuple[CodePlace, str, str], list[Moment]] = defaultdict(list)
    for moment in profile.moments:
        frames = profile.stack(moment.stack)
        if any(frame.file == IMPORTS for frame in frames):
            continue  # a program that starts is no leak: modules are imported once
        key = (place_of(frames) or _UNKNOWN, moment.device, kind_of(frames, moment.device))
        rows[key].append(moment)
    times = sorted({moment.time_ns for moment in profile.moments} | {profile.end_ns})
    found = []
    for (place, device, kind), moments in rows.items():
        start, end = _window(profile, kind, times[0])
        within = [start, *(t for t in times if start < t <= end)]
        grown = _growth(place, device, kind, moments, within, steps_s)
        if grown is not None:
            found.append(grown)
    # Where blocks are seen to be kept, the heap is only where they are.
    if any(one.kind != HEAP for one in found):
        found = [one for one in found if one.kind != HEAP]
    return sorted(found, key=lambda one: (-one.bytes_s, one.place.text, one.device))


def common_line(profile: Profile, growths: Iterable[MemoryGrowth]) -> CodePlace | None:
    """The deepest line of the user's own code that all of these were called from."""
    common: list[CodePlace] | None = None
    for number in (n for one in growths for n in one.stacks):
        own = [
            CodePlace(f.function, f.file, f.line)
            for f in profile.stack(number)
            if f.kind == "python" and is_user_file(f.file)
        ]
        if common is None:
            common = own
            continue
        same = 0
        while same < min(len(own), len(common)) and own[same] == common[same]:
            same += 1
        common = common[:same]
    return common[-1] if common else None


def _window(profile: Profile, kind: str, first_ns: int) -> tuple[int, int]:
    """When this kind was followed; ``first_ns``: when the first of anything was (probes take a while to attach). Pages tell of what was cut only from then on."""
    cuts = {cut.what: cut.time_ns for cut in profile.cuts}
    end = cuts.get(PAGES if kind == HEAP else kind, profile.end_ns)
    if kind not in (PAGES, HEAP):
        return first_ns, end
    before = [at for what, at in cuts.items() if what in ("malloc", "tensor memory")]
    return max([first_ns, *(at for at in before if at < end)]), end


def _growth(
    place: CodePlace, device: str, kind: str, moments: list[Moment], times: list[int], steps_s: float | None
) -> MemoryGrowth | None:
    if times[-1] - times[0] < _LEAST_S * 1e9:
        return None
    live_bytes, pieces = _together(moments, times)
    floors, floor_pieces = _floors(times, live_bytes), _floors(times, pieces)
    # The first part may hold the start of the program, and what was made before has no row.
    grown, more = floors[-1] - floors[1], floor_pieces[-1] - floor_pieces[1]
    seconds = (times[-1] - times[0]) / 1e9
    spent = seconds * (PARTS - 2) / PARTS
    bytes_s = grown / spent
    bytes_step = bytes_s / steps_s if steps_s else None
    if (
        grown < LEAST_BYTES
        or bytes_s < LEAST_BYTES_S
        or more < _LEAST_PIECES
        or (bytes_step is not None and bytes_step < LEAST_BYTES_STEP)
        or not _rises(floors, more)
        or (seconds < _SHORT_S and (more < _FEW or floors != sorted(set(floors))))
    ):
        return None
    stacks = tuple(dict.fromkeys(m.stack for m in moments))
    return MemoryGrowth(
        place, device, kind, bytes_s, more / spent, bytes_step, tuple(floors), seconds, stacks
    )


def _rises(floors: Sequence[int], more: int) -> bool:
    """Whether they rise to the end: seldom pieces may skip a part, and nothing that slows down to a stop counts."""
    changes = [after - before for before, after in pairwise(floors)]
    whole = floors[-1] - floors[1]
    if any(change < -0.1 * whole for change in changes[1:]):
        return False
    rises = sum(change > 0 for change in changes[1:])
    if rises < (_MOST_RISES - 1 if more > _FEW else _MOST_RISES - 2):
        return False
    # Of steady growth half is in the last half. Each of the last two parts has a quarter.
    late = floors[-1] - floors[-3]
    return late >= 0.3 * whole and (more <= _FEW or changes[-1] >= 0.1 * whole)


def _together(moments: list[Moment], times: list[int]) -> tuple[list[int], list[int]]:
    """Live bytes and pieces of all rows at these times. A row holds until the next one of its site."""
    changes: list[tuple[int, int, int]] = []
    last: dict[tuple[int, int, str], tuple[int, int]] = {}
    for m in sorted(moments, key=lambda m: m.time_ns):
        key = m.pid, m.stack, m.device
        before = last.get(key, (0, 0))
        changes.append((m.time_ns, m.live_bytes - before[0], m.live - before[1]))
        last[key] = m.live_bytes, m.live
    live_bytes, pieces = [], []
    at = n_bytes = n = 0
    for time in times:
        while at < len(changes) and changes[at][0] <= time:
            n_bytes += changes[at][1]
            n += changes[at][2]
            at += 1
        live_bytes.append(n_bytes)
        pieces.append(n)
    return live_bytes, pieces


def _floors(times: list[int], values: list[int]) -> list[int]:
    """The least value of each part; a part without a moment has what was there before it."""
    start, end = times[0], times[-1]
    floors = []
    for part in range(PARTS):
        low = bisect_right(times, start + (end - start) * part // PARTS)
        high = bisect_right(times, start + (end - start) * (part + 1) // PARTS)
        floors.append(min(values[low:high], default=values[max(low - 1, 0)]))
    return floors
