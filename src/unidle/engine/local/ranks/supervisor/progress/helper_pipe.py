"""The other end of ``unidle.rank``: records that a training script writes to an inherited pipe.

A record is one line of JSON with ``k`` and ``t`` (boot-time clock, ns):

- ``step``: ``n``, and ``c`` 1 when ``n`` counts calls instead of naming a step
- ``begin``: ``w``, what is being waited for; ``span``: ``t``, ``e``, ``w``, it is over
- ``saved``: ``n`` and ``text`` (a path) where known
- ``restored``: ``n``, the step after which the rank continues
- ``flops``: ``n`` floating-point operations in one step of this rank
- ``ready``
- ``dropped``: ``n`` records were lost because the pipe was full
"""

from __future__ import annotations

import json

from .step_counter import MarkThinner, StepCounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .step_counter import Mark

WAITS = frozenset(
    {"data", "eval", "save", "restore", "compile", "wan", "bubble", "again", "fill", "discarded"}
)
_RECORD_BYTES = 4096
_LONG_NS = 1_000_000_000  # a wait that lasts longer is reported while it lasts
_MOST = 2**63


class HelperPipe:
    """Turns what is read from the pipe into marks on the controller's clock."""

    def __init__(self, clock_offset_ns: int = 0) -> None:
        self.dropped = 0  # records that the rank could not write
        self.garbage = 0  # lines that are no record
        self.spoke: set[str] = set()  # kinds of marks seen so far
        self.counts_calls = False
        self.counter = StepCounter()
        self._offset_ns = clock_offset_ns
        self._tail = b""
        self._open: tuple[str, int] | None = None
        self._open_told = False
        self._thinner = MarkThinner()

    def feed(self, data: bytes, t_ns: int) -> list[Mark]:
        """Marks for the records in ``data``, read at ``t_ns``; a half record waits for its rest."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if line:
                self._record(line, t_ns)
        if len(self._tail) > _RECORD_BYTES:
            self._tail = b""
            self.garbage += 1
        return self._thinner.take(t_ns)

    def tick(self, t_ns: int) -> list[Mark]:
        """Marks that were held back long enough, and of a wait that is long already."""
        if self._open is not None and not self._open_told and t_ns - self._open[1] >= _LONG_NS:
            self._open_told = True
            self._add({"k": "begin", "t": self._open[1], "w": self._open[0], "o": "helper"})
        return self._thinner.take(t_ns)

    def flush(self, t_ns: int) -> list[Mark]:
        """The rest; what the rank was waiting for when it ended lasted until then."""
        if self._open is not None:
            what, start_ns = self._open
            self._open = None
            self._span(what, start_ns, t_ns)
        return self._thinner.take(t_ns, all_of_them=True)

    def _record(self, line: bytes, t_ns: int) -> None:
        try:
            record = json.loads(line) if len(line) <= _RECORD_BYTES else None
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not self._understood(record, t_ns):
            self.garbage += 1

    def _understood(self, record: dict[str, Any], t_ns: int) -> bool:
        kind, n = record.get("k"), record.get("n")
        if not _natural(record.get("t")) or not (n is None or _natural(n)):
            return False
        at_ns = min(record["t"] + self._offset_ns, t_ns)
        if kind == "step" and n is not None:
            self._step(n, record.get("c") == 1, at_ns)
        elif kind in ("begin", "span"):
            return self._wait(kind, record, at_ns, t_ns)
        elif kind == "saved":
            self._saved(n, record.get("text"), at_ns)
        elif kind in ("restored", "flops") and n is not None:
            self._add({"k": kind, "t": at_ns, "n": n, "o": "helper"})
        elif kind == "ready":
            self._add({"k": "ready", "t": at_ns, "o": "helper"})
        elif kind == "dropped" and n is not None:
            self.dropped += n
        else:
            return False
        return True

    def _step(self, n: int, counted: bool, at_ns: int) -> None:
        self.counts_calls = self.counts_calls or counted
        step = self.counter.see(n)
        if step is not None:
            self._add({"k": "step", "t": at_ns, "n": step, "o": "helper"})

    def _wait(self, kind: str, record: dict[str, Any], at_ns: int, t_ns: int) -> bool:
        what = record.get("w")
        if not isinstance(what, str) or what not in WAITS:
            return False
        if kind == "begin":
            self._open, self._open_told = (what, at_ns), False
            return True
        if not _natural(record.get("e")):
            return False
        self._open = None
        self._span(what, at_ns, min(record["e"] + self._offset_ns, t_ns))
        return True

    def _span(self, what: str, start_ns: int, end_ns: int) -> None:
        if start_ns < end_ns:
            self._add({"k": "span", "t": start_ns, "e": end_ns, "w": what, "o": "helper"})

    def _saved(self, n: int | None, text: object, at_ns: int) -> None:
        mark: Mark = {"k": "saved", "t": at_ns, "o": "helper"}
        if n is not None:
            mark["n"] = self.counter.base + n
        if isinstance(text, str):
            mark["text"] = text
        self._add(mark)

    def _add(self, mark: Mark) -> None:
        self.spoke.add(mark["k"])
        self._thinner.add(mark)


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST
