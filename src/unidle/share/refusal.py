"""The answer when a wish cannot be granted, and how what was in its way is counted in a sentence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from unidle.fleet import WHOLE_PPM
from unidle.jobs import Reason

CUT_REFUSED: Final = "cut_refused"
"""Code of the reason why an attempt ended for which the machine would not make a part of a device."""


@dataclass(frozen=True, slots=True)
class PartRefused:
    """Nothing is changed; ``because`` has the obstacle, and what would help."""

    because: Reason


def refused(code: str, text: str, **figures: float | str) -> PartRefused:
    """A refusal with the reason's figures as keywords."""
    return PartRefused(Reason(code, text, figures))


OBSTACLES: Final[dict[str, str]] = {
    "compute_full": "without so much compute left",
    "counts_for_more": "where it would count for more than may be charged",
    "cut_otherwise": "cut in another way while others use it",
    "larger_than_gpu": "smaller than what is asked for",
    "load_too_large": "where the part is too small for its load",
    "memory_full": "without so much memory left",
    "memory_unknown": "of unknown memory",
    "mig_in_use": "that is only cut again while it is unused",
    "mig_never_fits": "that never holds such MIG instances",
    "mig_no_profile": "without that MIG profile",
    "mig_no_room": "without room for the MIG instance",
    "mig_unknown": "that MIG cannot cut",
    "model_excluded": "of an excluded model",
    "model_not_included": "of another model",
    "mps_clients": "with all the clients that MPS serves",
    "no_guarantee": "without the isolation that it needs",
    "no_mig": "without MIG",
    "no_mps": "without MPS",
    "no_quota": "without CPU quotas",
    "no_time": "without time slices",
    "not_a_gpu": "that is no GPU",
    "oversubscribed": "that would be promised too often",
    "profile_without_mig": "without MIG, which its profile needs",
    "too_slow": "where it or others would be slowed down too much",
    "uuid_excluded": "excluded by its UUID",
    "uuid_not_included": "of another UUID",
    "whole_is_for_one": "that is not cut, for one job only",
}
"""What was in the way of a part, by the code of the refusal."""


def in_the_way(against: Counter[str], most: int | None = None) -> str:
    """``2 without MIG, 1 of another model``: the commonest first."""
    return ", ".join(f"{count} {OBSTACLES.get(code, code)}" for code, count in against.most_common(most))


def times_of(ppm: int) -> str:
    """``1.70 times``."""
    return f"{ppm / WHOLE_PPM:.2f} times"


def gib_of(count: int) -> str:
    """Bytes in GiB."""
    return f"{count / (1 << 30):.1f} GiB"
