"""Where every nanosecond of every device goes, and rows of a timeline: each device's time is spent in order, once."""

from __future__ import annotations

from typing import Final, NamedTuple

LEAF_OF: Final = {
    "computation": "useful", "recompute": "recompute", "all-reduce": "exposed_local", "waits": "bubble",
    "prefill": "filled", "discarded prefill": "discarded",
}  # fmt: skip
"""The leaf of the ledger for each cause; ``waits`` are what is left of the bubble and of waits for transfers."""


class SpentRow(NamedTuple):
    """An interval of a device. ``request`` and ``chunk``: -1 for training; ``op``: F, B, W, R, allreduce, fill or discarded."""

    device: int
    op: str
    start_ns: int
    end_ns: int
    unit: int = -1
    chunk: int = 0


class DeviceAccounts:
    """``until_ns``: what is later does not count, once it is known. ``rows``: None keeps none."""

    def __init__(self, devices: int, *, rows: bool) -> None:
        self.marks = [0] * devices
        self.spent: dict[str, int] = dict.fromkeys(LEAF_OF, 0)
        self.until_ns: int | None = None
        self.rows: list[SpentRow] | None = [] if rows else None

    def spend(self, device: int, until_ns: int, cause: str, row: tuple[str, int, int] | None = None) -> None:
        """The device's time from where it is to ``until_ns`` has that cause; ``row``: op, unit and chunk of the timeline."""
        begin = self.marks[device]
        if until_ns < begin:
            raise AssertionError(f"device {device}: time from {begin} to {until_ns} ns is spent twice")
        end = until_ns if self.until_ns is None else min(until_ns, self.until_ns)
        if end > begin:
            self.spent[cause] += end - begin
        if row is not None and self.rows is not None and until_ns > begin:
            self.rows.append(SpentRow(device, row[0], begin, until_ns, row[1], row[2]))
        self.marks[device] = until_ns
