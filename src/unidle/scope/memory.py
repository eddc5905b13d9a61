"""Memory by the line of code that asked for it: what was allocated while the look lasted, what of it is still there, what grows."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from unidle.scope.code_place import CodePlace, place_of
from unidle.scope.memory_growth import HEAP, PAGES, MemoryGrowth, common_line, growths_of, kind_of
from unidle.scope.model import Profile, StackMemory
from unidle.words import counted

_UNKNOWN: Final = CodePlace("(unknown)")
_MOST: Final = 6
_MOST_GROWTHS: Final = 4
_COVERS: Final = (
    "pages: what the process takes from the system in whole, among it the arenas of Python's objects up to 512 bytes, "
    "which never reach malloc: a line is reported when it needs a new one"
)
_ADVICE: Final = {
    "tensor memory": "what keeps a loss or an output keeps its graph: add .item() or .detach(); bound lists and dicts of tensors, remove hooks",
    "pages": "bound what collects there: a list, a dict, a cache without maxsize, hooks that are never removed",
    "heap": "bound what collects: a list, a dict, a cache without maxsize, hooks that are never removed",
    "malloc": "bound what collects there: a list, a dict, a cache without maxsize, hooks that are never removed",
    "cuda memory": "free or reuse these buffers",
    "cuda driver memory": "free or reuse these buffers",
}


@dataclass(frozen=True, slots=True)
class LineMemory:
    """A line of code (or a native function) on one device, with the allocations of the window."""

    place: CodePlace
    device: str  # "host", "pages", "cuda:0"
    allocated_bytes: int
    allocations: int
    live_bytes: int
    live: int
    bound: bool = False  # some of it was not followed to the end: lower bounds

    @property
    def text(self) -> str:
        return _where(self.place, self.device)


def sites_of(profile: Profile) -> list[LineMemory]:
    """The lines that allocated, by bytes allocated, most first. Sums over sites are the sums over ``profile.memory``."""
    rows: dict[tuple[CodePlace, str], list[StackMemory]] = defaultdict(list)
    for held in profile.memory:
        rows[place_of(profile.stack(held.stack)) or _UNKNOWN, held.device].append(held)
    cut = {one.what for one in profile.cuts}
    sites = [_site(profile, place, device, held, cut) for (place, device), held in rows.items()]
    return sorted(sites, key=lambda s: (-s.allocated_bytes, -s.live_bytes, s.device, s.place.text))


def memory_json(profile: Profile, steps_s: float | None = None, most: int = 50) -> list[dict[str, Any]]:
    """The sites as ``--json`` prints them: what grows first, then the most allocated."""
    grown = {(one.place, one.device): one for one in reversed(growths_of(profile, steps_s))}
    sites = sorted(sites_of(profile), key=lambda s: (s.place, s.device) not in grown)
    return [
        {
            "function": one.place.function, "file": one.place.file, "line": one.place.line, "device": one.device,
            "allocated_bytes": one.allocated_bytes, "allocations": one.allocations,
            "live_bytes": one.live_bytes, "live": one.live, "lower_bound": one.bound,
            "suspect": (one.place, one.device) in grown, "growth": _growth_json(grown.get((one.place, one.device))),
        }
        for one in sites[:most]
    ]  # fmt: skip


def _growth_json(one: MemoryGrowth | None) -> dict[str, Any] | None:
    if one is None:
        return None
    told = asdict(one)
    return {
        "bytes_s": round(one.bytes_s), "pieces_s": round(one.pieces_s, 2),
        "bytes_step": None if one.bytes_step is None else round(one.bytes_step),
        "floors_bytes": list(told["floors"]), "seconds": round(one.seconds, 3), "kind": one.kind,
    }  # fmt: skip


def memory_lines(
    profile: Profile,
    width: int,
    steps_s: float | None = None,
    source: Callable[[str, int], str | None] | None = None,
) -> list[str]:
    """The section of the first screen; empty where memory was not profiled, or nothing was allocated.

    ``steps_s``: training steps a second. ``source``: the text of a line of a file.
    """
    sites = sites_of(profile)
    if not sites:
        return []
    seconds = profile.seconds or 1.0
    whole = sum(one.allocated_bytes for one in sites)
    bound = "at least " if any(one.bound for one in sites) else ""
    head = f"Memory: {bound}{size(whole)} allocated ({size(round(whole / seconds))}/s), {size(sum(one.live_bytes for one in sites))} of it still there"
    lines = [*growth_lines(profile, width, steps_s, source), head[:width]]
    lines.append(f"  {'allocated':>10}  {'pieces':>8}  {'still there':>11}  line")
    for one in sites[:_MOST]:
        amount = (">" if one.bound else "") + size(one.allocated_bytes)
        lines.append(f"  {amount:>10}  {one.allocations:>8,}  {size(one.live_bytes):>11}  {one.text}"[:width])
    lines += _how_far(profile, sites, width)
    return [*lines, ""]


def growth_lines(
    profile: Profile,
    width: int,
    steps_s: float | None = None,
    source: Callable[[str, int], str | None] | None = None,
) -> list[str]:
    """What grows without end, in plain words; empty if nothing does."""
    growths = growths_of(profile, steps_s)
    if not growths:
        return []
    whole = sum(one.bytes_s for one in growths)
    at = growths[0] if len(growths) == 1 else None
    where = f"at {at.place.text}" if at else f"at {counted(len(growths), 'line')}"
    common = common_line(profile, growths) if len(growths) > 1 else None
    below = f", all called from {common.text}" if common else ""
    step = f", {size(round(whole / steps_s))} a step" if steps_s else ""
    lines = textwrap.wrap(
        f"Memory grows by {size(round(whole))}/s{step}, {where}{below}: a leak?",
        width,
        subsequent_indent="  ",
    )
    for n, one in enumerate(growths[:_MOST_GROWTHS]):
        lines.append(f"  {_rate(one)}  {_where(one.place, one.device)}"[:width])
        text = source(one.place.file, one.place.line) if source and n == 0 else None
        if text and text.strip():
            lines.append(f"      > {text.strip()}"[:width])
        lines += textwrap.wrap(_evidence(one), width, initial_indent="      ", subsequent_indent="      ")
    if len(growths) > _MOST_GROWTHS:
        rest = growths[_MOST_GROWTHS:]
        lines.append(
            f"  {size(round(sum(one.bytes_s for one in rest)))}/s  at {counted(len(rest), 'more line')}"
        )
    if do := _ADVICE.get(growths[0].kind):
        lines += textwrap.wrap(f"try: {do}", width, initial_indent="  ", subsequent_indent="       ")
    return [*lines, ""]


def _rate(one: MemoryGrowth) -> str:
    step = "" if one.bytes_step is None else f", {size(round(one.bytes_step))} a step"
    return f"{size(round(one.bytes_s))}/s{step}"


def _where(place: CodePlace, device: str) -> str:
    return place.text + {"host": "", PAGES: ", pages"}.get(device, f" on {device}")


def _evidence(one: MemoryGrowth) -> str:
    """What makes it a suspect, so that a reader may judge."""
    told = ", ".join(size(floor) for floor in one.floors)
    what = f"{_number(one.pieces_s)} blocks a second more than are freed"
    if one.kind == HEAP:
        what = "the heap was full here and had to grow; what is kept may come from other lines"
    elif one.device == PAGES:
        what = "arenas and other pages, never given back"
    return f"{what}: never under {told} live in each sixth of {one.seconds:.1f} s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _how_far(profile: Profile, sites: Iterable[LineMemory], width: int) -> list[str]:
    """What the figures do not hold."""
    told = [_COVERS] if any(one.device == PAGES for one in sites) else []
    for cut in profile.cuts:
        after = (cut.time_ns - profile.start_ns) / 1e9
        told.append(f"{cut.what}: followed for {after:.1f} s only; figures with > are lower bounds")
    return [
        line
        for text in told
        for line in textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    ]


def size(n_bytes: int) -> str:
    """Bytes with a unit of 1,000s: ``12.3 MB``."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _site(
    profile: Profile, place: CodePlace, device: str, held: Iterable[StackMemory], cut: set[str]
) -> LineMemory:
    rows = tuple(held)
    return LineMemory(
        place, device,
        sum(one.allocated_bytes for one in rows), sum(one.allocations for one in rows),
        sum(one.live_bytes for one in rows), sum(one.live for one in rows),
        bool(cut) and any(kind_of(profile.stack(one.stack), device) in cut for one in rows),
    )  # fmt: skip
