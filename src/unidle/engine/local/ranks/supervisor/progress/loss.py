"""The training loss out of what a rank prints: the last one before a step is reported goes with that step.

Only the end of each chunk is kept, and it is searched when a step mark leaves (about 20 times a second at most), so that a
flood of output costs next to nothing.
"""

from __future__ import annotations

import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .step_counter import Mark

_KEPT_BYTES = 4096
_ANSI = rb"\x1b\[[0-9;?]*[A-Za-z]"
_LOSS = (
    rb"(?i)(?<![A-Za-z0-9_])((?:train(?:ing)?[ _/.-]{0,2})?)(?:(?:total|lm|batch|running|avg|average|mean)[ _/.-])?"
    rb"loss(?:/train)?[\"']?\)?[ \t]{0,8}[:=]?[ \t]{0,8}[\"']?(?:tensor\()?"
    rb"([-+]?(?:\d{1,20}(?:\.\d{0,40})?|\.\d{1,40})(?:e[-+]?\d{1,3})?|[-+]?(?:nan|inf(?:inity)?))(?![A-Za-z0-9_])"
)
_LONGEST_WORD = 16  # more than one of these has
_HELD_OUT = rb"(?i)(?<![A-Za-z])(?:val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?|dev)(?![A-Za-z])"


class Losses:
    """The losses of one rank. :meth:`see` takes its output, :meth:`put_on` its marks of steps."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def see(self, block: bytes) -> None:
        """Keep the end of a block of whole lines, where it may hold a loss."""
        end = block[-_KEPT_BYTES:]
        if b"oss" in end or b"OSS" in end:
            self._tail = end

    def put_on(self, marks: list[Mark]) -> list[Mark]:
        """The same marks; the last step among them has the loss ``v``, or ``text`` where that is no finite number."""
        if not self._tail:
            return marks
        for mark in reversed(marks):
            if mark["k"] == "step":
                value = loss_in(self._tail)
                self._tail = b""
                if value is not None:
                    mark.update({"v": value} if math.isfinite(value) else {"text": f"loss {value}"})
                break
        return marks


def loss_in(block: bytes) -> float | None:
    """The last training loss in some lines; None without one. Losses of evaluations do not count."""
    if b"\x1b" in block:
        block = re.sub(_ANSI, b"", block)
    last = None
    begin = seen = 0  # of the line, and how far it was searched
    held_out = False
    search = re.compile(_HELD_OUT).search
    for found in re.finditer(_LOSS, block):
        line = block.rfind(b"\n", seen, found.start()) + 1
        if line > begin:
            begin, seen, held_out = line, line, False
        if not held_out:
            held_out = search(block, max(begin, seen - _LONGEST_WORD), found.start()) is not None
        seen = found.start()
        if found[1] or not held_out:
            last = found[2]
    return None if last is None else float(last)
