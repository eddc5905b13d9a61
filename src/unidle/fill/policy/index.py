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

from unidle.fill.policy.windows import FillWindow

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
        self._base: Ints = np.arange(count, dtype=np.int64) << 46
        self._free: Ints = self._base.copy()
        self._begin, self._found, self._more = (np.empty(count, dtype=np.int64) for _ in range(3))
        self._make(_MORE)

    def _make(self, width: int) -> None:
        """Rows of that many columns. The last ones are empty, so that no search leaves its row."""
        shape = (len(self._base), width)
        self._width = width
        self._ends: Ints = np.empty(shape, dtype=np.int64)
        self._sums: Ints = np.empty(shape, dtype=np.int64)
        self._before: Ints = np.empty(shape, dtype=np.int64)
        self._shifts: Ints = np.empty(shape, dtype=np.int64)
        for device, row in self._row_of.items():
            self._write(row, device)
        self._flat = self._ends.ravel(), self._sums.ravel(), self._before.ravel(), self._shifts.ravel()

    def put(self, device: int, windows: Sequence[FillWindow]) -> None:
        """The windows of a device from now on: in order, none of them overlapping. What was there before is replaced."""
        self.starts[device] = [each.start_ns for each in windows]
        self.ends[device] = [each.end_ns for each in windows]
        self.free_bytes[device] = [each.free_bytes for each in windows]
        row = self._row_of.get(device)
        if row is None:
            return
        if windows and windows[-1].end_ns - self._origin >= NEVER // 2:
            self._shift(windows[-1].end_ns)
        if len(windows) >= self._width:
            self._make(len(windows) + _MORE)
        else:
            self._write(row, device)

    def _shift(self, moment: int) -> None:
        """Count from a quarter of the range before ``moment`` on; windows that ended long before it stay ended."""
        origin = moment - NEVER // 4
        self._free += self._origin - origin
        np.maximum(self._free, self._base, out=self._free)
        self._origin = origin
        self._make(self._width)

    def _write(self, row: int, device: int) -> None:
        """One row. A moment in a window, less the shift of the window, is the time in windows up to that moment."""
        starts, ends, base = self.starts[device], self.ends[device], int(self._base[row])
        total, sums, before = base, [], []
        for start, end in zip(starts, ends, strict=True):
            before.append(total)
            total += end - start
            sums.append(total)
        count, shifted = len(ends), base - self._origin
        moved = [max(end + shifted, base - NEVER // 2) for end in ends]
        self._ends[row, :count], self._ends[row, count:] = moved, base + NEVER
        self._sums[row, :count], self._sums[row, count:] = sums, base + NEVER
        self._before[row, :count], self._before[row, count:] = before, total
        self._shifts[row, :count] = [end - at for end, at in zip(moved, sums, strict=True)]
        self._shifts[row, count:] = 2 * NEVER

    def move(self, pipeline: int, free_ns: int) -> None:
        """The first device of the pipeline has work until then."""
        self._free[pipeline] = free_ns - self._origin + int(self._base[pipeline])

    def earliest(self, work_ns: int, now_ns: int, count: int = 1) -> list[tuple[int, int]]:
        """The pipelines on whose first device so much work would end first: ``(end, pipeline)``, in this order.

        Work runs in windows only, after what is there, and may be cut anywhere. A pipeline whose windows do not hold it is left out.
        """
        if now_ns - self._origin >= NEVER // 2:
            self._shift(now_ns)
        (ends, sums, before, shifts), base = self._flat, self._base
        begin, found, more = self._begin, self._found, self._more
        np.add(base, now_ns - self._origin, out=begin)
        np.maximum(begin, self._free, out=begin)
        here = ends.searchsorted(begin, side="right")
        # A begin before the window counts from its start.
        shifts.take(here, out=found, mode="clip")
        np.subtract(begin, found, out=found)
        before.take(here, out=more, mode="clip")
        np.maximum(found, more, out=found)
        found += work_ns
        shifts.take(sums.searchsorted(found), out=more, mode="clip")
        found += more
        found -= base
        nearest = list[tuple[int, int]]()
        for _ in range(min(count, len(base))):
            pipeline = int(found.argmin())
            if (end := int(found[pipeline])) >= NEVER:
                break
            nearest.append((end + self._origin, pipeline))
            found[pipeline] = 2 * NEVER
        return nearest


def fluid_end_ns(windows: Sequence[FillWindow], free_ns: int, work_ns: int) -> int | None:
    """The same for one row by a scan of its windows; None if they do not hold the work."""
    for each in windows:
        start = max(each.start_ns, free_ns)
        if each.end_ns <= start:
            continue
        if each.end_ns - start >= work_ns:
            return start + work_ns
        work_ns -= each.end_ns - start
    return None
