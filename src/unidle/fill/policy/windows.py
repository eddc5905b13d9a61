"""Windows: times in which a device of a training job computes nothing."""

from __future__ import annotations

from typing import Final, NamedTuple

UNLIMITED: Final = 1 << 62


class FillWindow(NamedTuple):
    """Nanoseconds; ``free_bytes``: memory that training leaves in it. ``device``: number of the device."""

    device: int
    start_ns: int
    end_ns: int
    free_bytes: int = UNLIMITED
