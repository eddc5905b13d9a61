"""Ratios: sums of leaves over sums of leaves, and nothing else.

Four of them multiply to a fifth: coverage x availability x scheduling goodput x runtime goodput =
utilisation, because each one's denominator is the numerator of the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unidle.ledger.taxonomy import GROUP_OF

# What the device was bought for. Activation recompute is not in it: it is work that the layout
# chose to repeat, and a leaf of its own so that it can be won back. Time without a step that was seen
# (unmeasured) is not in it either: where there is such time, the ratios are lower bounds.
USEFUL: Final = ("useful", "within_slo", "filled")

_SEEN: Final = tuple(leaf for leaf, group in GROUP_OF.items() if group != "unseen")
_UP: Final = tuple(leaf for leaf in _SEEN if GROUP_OF[leaf] != "down")
_ALLOCATED: Final = tuple(leaf for leaf in _UP if GROUP_OF[leaf] != "free")


@dataclass(frozen=True, slots=True)
class RatioDefinition:
    """``numerator`` and ``denominator`` are sets of leaves; ``of_jobs`` counts only rows with a job."""

    name: str
    text: str
    formula: str
    numerator: tuple[str, ...]
    denominator: tuple[str, ...]
    of_jobs: bool = False


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with the ns behind it; ``value`` is None where the denominator is 0."""

    numerator_ns: int
    denominator_ns: int

    @property
    def value(self) -> float | None:
        return self.numerator_ns / self.denominator_ns if self.denominator_ns else None


RATIOS: Final[dict[str, RatioDefinition]] = {
    r.name: r
    for r in (
        RatioDefinition(
            "coverage",
            "how much of the capacity was observed at all",
            "(capacity - unseen) / capacity",
            _SEEN,
            tuple(GROUP_OF),
        ),
        RatioDefinition(
            "availability",
            "how much of the observed capacity was in working order, and not used by others",
            "1 - down / (capacity - unseen)",
            _UP,
            _SEEN,
        ),
        RatioDefinition(
            "scheduling_goodput",
            "how much of the working capacity was given to jobs",
            "(capacity - unseen - down - free) / (capacity - unseen - down)",
            _ALLOCATED,
            _UP,
        ),
        RatioDefinition(
            "runtime_goodput",
            "how much of what jobs were given became work that counts",
            "(useful + within_slo + filled) / (capacity - unseen - down - free)",
            USEFUL,
            _ALLOCATED,
        ),
        RatioDefinition(
            "utilisation",
            "how much of the capacity became work that counts",
            "(useful + within_slo + filled) / capacity",
            USEFUL,
            tuple(GROUP_OF),
        ),
        RatioDefinition(
            "ettr",
            "effective training time ratio: how much of the time with a job became work that counts,"
            " over all jobs of the selection",
            "(useful + within_slo + filled of jobs) / all leaves of jobs",
            USEFUL,
            tuple(GROUP_OF),
            of_jobs=True,
        ),
    )
}


def ratios_of(leaves_ns: Mapping[str, int], job_leaves_ns: Mapping[str, int]) -> dict[str, Ratio]:
    """Every ratio of a window: ns per leaf of all rows, and of the rows with a job."""
    return {
        name: ratio_of(RATIOS[name], job_leaves_ns if RATIOS[name].of_jobs else leaves_ns) for name in RATIOS
    }


def ratio_of(definition: RatioDefinition, leaves_ns: Mapping[str, int]) -> Ratio:
    """One ratio from ns per leaf; leaves that are not there count 0."""
    return Ratio(
        sum(leaves_ns.get(leaf, 0) for leaf in definition.numerator),
        sum(leaves_ns.get(leaf, 0) for leaf in definition.denominator),
    )
