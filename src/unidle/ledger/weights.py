"""How many nanoseconds a slice's interval counts: a slice counts by its share of the device.

``w(t) = floor(t * share_ppm / 1_000_000)`` and an interval counts ``w(end) - w(start)``. The
differences telescope, so the sum never depends on where an interval was cut; on a whole device it
is plain time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from unidle.ledger.columns import RowColumns
    from unidle.ledger.tables import Ints, SliceTable

PPM: Final = 1_000_000


def weigh(time_ns: Ints, share_ppm: Ints) -> Ints:
    """``w(time_ns)``, exact for every int64 time and every share up to a whole."""
    millions, rest = np.divmod(time_ns, PPM)
    return millions * share_ppm + rest * share_ppm // PPM


def row_ns(columns: RowColumns) -> Ints:
    """What each row counts, in ns of whole devices; signs are not applied."""
    start, end = columns["start_ns"], columns["end_ns"]
    share = columns.slices.share_ppm
    if (share == PPM).all():
        return end - start
    each = share[columns["slice"]]
    return weigh(end, each) - weigh(start, each)


def slice_ns(slices: SliceTable) -> Ints:
    """The capacity of each slice, in ns of whole devices, from its sightings alone."""
    return weigh(slices.last_ns, slices.share_ppm) - weigh(slices.first_ns, slices.share_ppm)


def exact_sum(values: npt.NDArray[np.integer[Any]]) -> int:
    """The sum of int64 values without overflow (a fleet's month exceeds 63 bits)."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
