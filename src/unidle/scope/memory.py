"""Memory by the line of code that asked for it: what was allocated while the look lasted, and what of it is still there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from unidle.scope.model import Held, Profile
from unidle.scope.places import Place, place_of

_UNKNOWN: Final = Place("(unknown)")
_MOST: Final = 6
# What lives on at the end may just be in use. Only a site that keeps on adding pieces of which most stay is suspect.
_LEAST_PIECES: Final = 8
_KEPT: Final = 0.5
_LEAST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Site:
    """A line of code (or a native function) on one device, with the allocations of the window."""

    place: Place
    device: str  # "host", "cuda:0"
    allocated_bytes: int
    allocations: int
    live_bytes: int
    live: int

    @property
    def suspect(self) -> bool:
        """Whether it looks like a leak: many pieces, and most of them stay."""
        return (
            self.live >= _LEAST_PIECES
            and self.live >= _KEPT * self.allocations
            and self.live_bytes >= max(_LEAST_BYTES, _KEPT * self.allocated_bytes)
        )


def sites_of(profile: Profile) -> list[Site]:
    """The lines that allocated, by bytes allocated, most first. Sums over sites are the sums over ``profile.memory``."""
    rows: dict[tuple[Place, str], list[Held]] = defaultdict(list)
    for held in profile.memory:
        rows[place_of(profile.stack(held.stack)) or _UNKNOWN, held.device].append(held)
    sites = [_site(place, device, held) for (place, device), held in rows.items()]
    return sorted(sites, key=lambda s: (-s.allocated_bytes, -s.live_bytes, s.device, s.place.text))


def memory_json(profile: Profile, most: int = 50) -> list[dict[str, Any]]:
    """The sites as ``--json`` prints them."""
    return [
        {
            "function": one.place.function, "file": one.place.file, "line": one.place.line, "device": one.device,
            "allocated_bytes": one.allocated_bytes, "allocations": one.allocations,
            "live_bytes": one.live_bytes, "live": one.live, "suspect": one.suspect,
        }
        for one in sites_of(profile)[:most]
    ]  # fmt: skip


def memory_lines(profile: Profile, width: int) -> list[str]:
    """The section of the first screen; empty where memory was not looked at, or nothing was allocated."""
    sites = sites_of(profile)
    if not sites:
        return []
    seconds = profile.seconds or 1.0
    whole = sum(one.allocated_bytes for one in sites)
    head = f"Memory: {size(whole)} allocated ({size(round(whole / seconds))}/s), {size(sum(one.live_bytes for one in sites))} of it still there"
    lines = [head[:width], f"  {'allocated':>9}  {'pieces':>8}  {'still there':>11}  line"]
    suspects = [one for one in sites if one.suspect]
    for one in [*sites[:_MOST], *(s for s in suspects[:_MOST] if s not in sites[:_MOST])]:
        where = one.place.text + ("" if one.device == "host" else f" on {one.device}")
        mark = "  grows: a leak?" if one.suspect else ""
        text = f"  {size(one.allocated_bytes):>9}  {one.allocations:>8,}  {size(one.live_bytes):>11}  {where}"
        lines.append(text[: width - len(mark)] + mark)
    return [*lines, ""]


def size(n_bytes: int) -> str:
    """Bytes with a unit of 1,000s: ``12.3 MB``."""
    value = float(n_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _site(place: Place, device: str, held: Iterable[Held]) -> Site:
    rows = tuple(held)
    return Site(
        place, device,
        sum(one.allocated_bytes for one in rows), sum(one.allocations for one in rows),
        sum(one.live_bytes for one in rows), sum(one.live for one in rows),
    )  # fmt: skip
