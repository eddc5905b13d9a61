"""Memory of two looks by line: how much more is live, and how much faster it is allocated. Pure.

A look sees what was allocated while it lasted, so looks of equal length compare best: live memory is given in bytes
of each look, allocations in bytes a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unidle.scope.code_place import CodePlace
from unidle.scope.memory import LineMemory, sites_of, size
from unidle.scope.model import Profile


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """A line on one device on both sides."""

    place: CodePlace
    device: str
    live_before: int
    live_after: int
    rate_before: float  # bytes allocated a second
    rate_after: float

    @property
    def live_bytes(self) -> int:
        """How much more lives afterwards."""
        return self.live_after - self.live_before


def memory_changes(before: Profile, after: Profile) -> list[MemoryChange]:
    """The lines whose memory differs, those that hold more afterwards first. Empty where neither look followed memory."""
    sides = [{(s.place, s.device): s for s in sites_of(profile)} for profile in (before, after)]
    changes = [
        _change(key, sides[0].get(key), sides[1].get(key), before.seconds or 1.0, after.seconds or 1.0)
        for key in {**sides[0], **sides[1]}
    ]
    differing = [c for c in changes if c.live_bytes or round(c.rate_after) != round(c.rate_before)]
    return sorted(
        differing, key=lambda c: (-c.live_bytes, c.rate_before - c.rate_after, c.place.text, c.device)
    )


def memory_change_rows(before: Profile, after: Profile, most: int = 10) -> list[list[str]]:
    """Rows of a table: line, live before and after, more, allocated a second before and after."""
    changes = memory_changes(before, after)
    if len(changes) > most:  # both ends tell: what grew and what shrank
        changes = changes[: most - most // 3] + changes[-(most // 3) :]
    return [
        [
            c.place.text + ("" if c.device == "host" else f", {c.device}"),
            size(c.live_before), size(c.live_after), ("+" if c.live_bytes > 0 else "") + size(c.live_bytes),
            f"{size(round(c.rate_before))}/s", f"{size(round(c.rate_after))}/s",
        ]
        for c in changes
    ]  # fmt: skip


def memory_change_json(before: Profile, after: Profile, most: int = 50) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {
            "function": c.place.function, "file": c.place.file, "line": c.place.line, "device": c.device,
            "live_before_bytes": c.live_before, "live_after_bytes": c.live_after,
            "allocated_before_bytes_s": round(c.rate_before), "allocated_after_bytes_s": round(c.rate_after),
        }
        for c in memory_changes(before, after)[:most]
    ]  # fmt: skip


def _change(
    key: tuple[CodePlace, str],
    before: LineMemory | None,
    after: LineMemory | None,
    seconds_before: float,
    seconds_after: float,
) -> MemoryChange:
    return MemoryChange(
        *key,
        before.live_bytes if before else 0, after.live_bytes if after else 0,
        before.allocated_bytes / seconds_before if before else 0.0,
        after.allocated_bytes / seconds_after if after else 0.0,
    )  # fmt: skip
