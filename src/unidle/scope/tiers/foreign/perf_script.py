"""The text of ``perf script``: a line for each sample, then its frames, leaf first, then an empty line."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from unidle.scope.model import Frame
from unidle.scope.tiers.foreign.builder import Builder
from unidle.scope.tiers.foreign.source import Stream, damaged

_HEAD: Final = re.compile(
    r"\s*(.*?)\s+(\d{1,9})(?:/(\d{1,9}))?\s+(?:\[\d+\]\s+)?(?:[-.a-zA-Z0-9]{4,6}\s+)?(\d{1,10})\.(\d{6}|\d{9}):\s+(?:(\d{1,15})\s+)?(\S.*?):\s*(.*)"
)
_FRAME: Final = re.compile(r"\s+([0-9a-f]+)\s+(.*?)(?:\+0x([0-9a-f]+))?(?: \((.*)\))?\s*")
_RATE: Final = re.compile(r"(?:-F|--freq)[ =]?(\d{1,6})\b")
_CLOCKS: Final = ("cpu-clock", "task-clock")
_KERNEL: Final = ("[kernel", "[guest.kernel", "[vdso")
ASSUMED_HZ: Final = 4000  # perf record's own rate without -F


def is_perf_script(head: bytes) -> bool:
    """Whether the first lines that are no comments are a sample with its first frame."""
    lines = [
        line
        for line in head.decode(errors="replace").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    return bool(lines) and _HEAD.fullmatch(lines[0]) is not None and (
        len(lines) < 2 or _FRAME.fullmatch(lines[1]) is not None or _HEAD.fullmatch(lines[1]) is not None
    )  # fmt: skip


def read_perf_script(stream: Stream) -> Builder:
    """Periods of clock events are nanoseconds; samples of other events count one period of the rate each."""
    reader = _Reader(Builder("perf script"), stream.name)
    for number, line, _ in stream.lines():
        reader.line(number, line.decode(errors="replace"))
    return reader.finish()


class _Reader:
    def __init__(self, to: Builder, name: str) -> None:
        self.to, self.name = to, name
        self.head: re.Match[str] | None = None
        self.frames: list[Frame] = []
        self.rate = 0
        self.pending: Counter[tuple[int, int, int]] = Counter()
        self.unknown = self.total = 0

    def line(self, number: int, text: str) -> None:
        if text.startswith("#"):
            if text.startswith("# cmdline") and (told := _RATE.search(text)):
                self.rate = int(told[1])
        elif not text.strip():
            self.flush()
        elif text[0] in " \t" and self.head is not None and (told := _FRAME.fullmatch(text)):
            self.frames.append(_frame(told[2], told[4] or ""))
            self.unknown += told[2] == "[unknown]"
            self.total += 1
        elif told := _HEAD.fullmatch(text):
            self.flush()
            self.head = told
        else:
            raise damaged(self.name, f"line {number} is no line of perf script")

    def flush(self) -> None:
        if self.head is None:
            return
        told, frames = self.head, self.frames or [Frame("native", "[no stack]")]
        self.head, self.frames = None, []
        first, second = int(told[2]), told[3]
        pid, tid = (first, int(second)) if second else (first, first)
        at = int(told[4]) * 10**9 + int(told[5].ljust(9, "0"))
        stack = self.to.stacks.of(reversed(frames))
        self.to.names.setdefault((pid, tid), told[1])
        self.to.lasted(pid, tid, at, at)
        if told[6] and told[7].startswith(_CLOCKS):
            self.to.sample(pid, tid, stack, int(told[6]))
        else:
            self.pending[pid, tid, stack] += 1

    def finish(self) -> Builder:
        self.flush()
        to, hz = self.to, self.rate or ASSUMED_HZ
        for (pid, tid, stack), count in self.pending.items():
            to.sample(pid, tid, stack, count * 10**9 // hz, count=count)
        if self.pending and not self.rate:
            to.notes.append(
                f"the rate is missing (perf script --header prints it): {hz} a second are assumed"
            )
        if self.total and self.unknown:
            to.notes.append(f"{100 * self.unknown / self.total:.1f} % of its frames have no symbol")
        to.hz = hz if self.rate else 0
        to.misses += [
            "perf's own clock, which is not tied to UTC: it cannot be aligned",
            "no time of blocked threads; Python frames only where the program ran with -X perf",
        ]
        return to


def _frame(symbol: str, module: str) -> Frame:
    short = module.rsplit("/", 1)[-1]
    # CPython's trampolines (python -X perf) are named py::function:file.
    if symbol.startswith("py::"):
        function, _, file = symbol[4:].partition(":")
        return Frame("python", function, file)
    kernel = module.startswith(_KERNEL) or (
        module.startswith("[") and module not in {"[unknown]", "[heap]", "[stack]"}
    )
    kernel = kernel or module.endswith((".ko", ".ko.xz", ".ko.zst"))
    return Frame(
        "kernel" if kernel and "vdso" not in module else "native", symbol or "[unknown]", module=short
    )
