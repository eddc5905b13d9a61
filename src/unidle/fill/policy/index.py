"""Where work fits next: the windows ahead of every inference pipeline, sorted, with sums of their lengths.

A pipeline is a row: the ends of its first device's windows, and the time in windows up to each end. When so much work would end on
it follows from two binary searches in the row, and NumPy does those of all rows at once: P log W steps for P pipelines with W windows.
A plain search over all windows gives the same (:func:`fluid_end_ns`); tests compare them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from unidle.fill.policy.windows import Window

Ints = npt.NDArray[np.int64]
NEVER: Final = 1 << 44  # nanoseconds of time or of windows: 4.9 hours ahead of the origin of the index
_MORE: Final = 8  # columns that a row grows by


class WindowIndex:
    """Windows of devices, and the first free moment of each pipeline. The one mutable part of the policy.

    Times are nanoseconds and at most :data:`NEVER` after the oldest window that is still there.
    """

    def __init__(self, pipelines: Sequence[Sequence[int]]) -> None:
        self._row_of = {devices[0]: row for row, devices in enumerate(pipelines)}
        many = [device for devices in pipelines for device in devices]
        self.starts: dict[int, list[int]] = {device: [] for device in many}
        self.ends: dict[int, list[int]] = {device: [] for device in many}
        self.free_bytes: dict[int, list[int]] = {device: [] for device in many}
        count = len(pipelines)
        self._origin = 0
        self._free: Ints = np.zeros(count, dtype=np.int64)
        self._base: Ints = np.arange(count, dtype=np.int64) << 45
        self._width = 0
        self._make(_MORE)

    def _make(self, width: int) -> None:
        count = len(self._base)
        self._width = width
        self._ends: Ints = np.empty((count, width), dtype=np.int64)
        self._sums: Ints = np.empty((count, width), dtype=np.int64)
        self._ends[:] = self._sums[:] = (self._base + NEVER)[:, None]
        for device, row in self._row_of.items():
            self._write(row, device)
        self._flat_ends, self._flat_sums = self._ends.ravel(), self._sums.ravel()

    def put(self, device: int, windows: Sequence[Window]) -> None:
        """The windows of a device from now on: in order, none of them overlapping. What was there before is replaced."""
        self.starts[device] = [each.start_ns for each in windows]
        self.ends[device] = [each.end_ns for each in windows]
        self.free_bytes[device] = [each.free_bytes for each in windows]
        row = self._row_of.get(device)
        if row is None:
            return
        if windows and windows[-1].end_ns - self._origin >= NEVER // 2:
            self._shift(min(starts[0] for starts in self.starts.values() if starts))
        if len(windows) >= self._width:
            self._make(len(windows) + _MORE)
        else:
            self._write(row, device)

    def _shift(self, origin: int) -> None:
        self._free += self._origin - origin
        self._origin = origin
        self._make(self._width)

    def _write(self, row: int, device: int) -> None:
        """One row; the last column always stays empty, so that no search leaves it."""
        starts, ends, base = self.starts[device], self.ends[device], int(self._base[row])
        total, sums = 0, []
        for start, end in zip(starts, ends, strict=True):
            total += end - start
            sums.append(base + total)
        count = len(ends)
        shifted = base - self._origin
        self._ends[row, :count] = [end + shifted for end in ends]
        self._sums[row, :count] = sums
        self._ends[row, count:] = self._sums[row, count:] = base + NEVER

    def move(self, pipeline: int, free_ns: int) -> None:
        """The first device of the pipeline has work until then."""
        self._free[pipeline] = free_ns - self._origin

    def earliest(self, work_ns: int, now_ns: int, count: int = 1) -> list[tuple[int, int]]:
        """The pipelines on whose first device so much work would end first: ``(end, pipeline)``, in this order.

        Work runs in windows only, after what is there, and may be cut anywhere. A pipeline whose windows do not hold it is left out.
        """
        ends, sums, base = self._flat_ends, self._flat_sums, self._base
        begin = np.maximum(self._free, now_ns - self._origin) + base
        here = ends.searchsorted(begin, side="right")
        # A begin before the window counts from its start: what is left of it is then all of it.
        before = np.where(here % self._width, sums[here - 1], base)
        left = np.minimum(ends[here] - begin, sums[here] - before)
        target = sums[here] - left + work_ns
        there = sums.searchsorted(target)
        found = ends[there] - sums[there] + target - base
        found[sums[there] - base >= NEVER] = 2 * NEVER
        if count == 1:
            order = [int(found.argmin())]
        else:
            few = min(count, len(found))
            nearest = np.argpartition(found, few - 1)[:few] if few < len(found) else np.arange(few)
            limit = found[nearest].max()
            tied = np.nonzero(found <= limit)[0]
            order = tied[np.argsort(found[tied], kind="stable")][:few].tolist()
        return [(int(found[p]) + self._origin, p) for p in order if found[p] < 2 * NEVER]


def fluid_end_ns(windows: Sequence[Window], free_ns: int, work_ns: int) -> int | None:
    """The same for one row by a scan of its windows; None if they do not hold the work."""
    for each in windows:
        start = max(each.start_ns, free_ns)
        if each.end_ns <= start:
            continue
        if each.end_ns - start >= work_ns:
            return start + work_ns
        work_ns -= each.end_ns - start
    return None
