"""One filler next to one rank: its process, as the supervisor starts, watches and ends it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from unidle.engine.local.ranks.cgroups import ControlGroup
from unidle.errors import CannotRun
from unidle.fill.runtime.conduct import PieceUse, Verdict, judge
from unidle.fill.runtime.kernel import FillGroup, check_gives_way, end, read
from unidle.fill.runtime.ranks import FilledRank
from unidle.fill.runtime.shared_counters import FINISHED, SharedCounters
from unidle.rank.waits import BoardReader

_START_S: Final = 60.0
_LEAVE_S: Final = 2.0
_LAST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class FillerOrder:
    """What is run next to each rank. ``arguments``: of its class. ``by_kernel``: at any time, in what the kernel gives it. ``restarts``: how often it is started again after it was ended."""

    filler: str
    arguments: dict[str, Any]
    piece_ns: int
    memory_bytes: int
    paced: bool = False
    by_kernel: bool = False
    restarts: int = 3


@dataclass(slots=True)
class FillerProcess:
    """Next to ``rank``, the ``index``-th of ``count``. ``ended``: why it runs no more, empty while it does."""

    order: FillerOrder
    rank: FilledRank
    groups: FillGroup
    index: int
    count: int
    log: Path
    counters: SharedCounters = field(default_factory=SharedCounters)
    board: BoardReader | None = None
    ended: str = ""
    failed: bool = False
    frozen_when_busy: str = ""
    endings: list[str] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None
    _group: ControlGroup | None = None
    _frozen: bool = False
    _leaving: bool = False
    _cpu: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=64))
    _piece: tuple[int, int, int] = (0, 0, 0)

    def start(self) -> None:
        """Start it in its group; it runs once the kernel's settings were found to give way. Errors: CannotRun."""
        if self.rank.board is not None and self.board is None:
            self.board = BoardReader(self.rank.pid, self.rank.board)
        self.counters.clear()
        self._group = group = self.groups.add(f"{self.index}", 2 * self.order.memory_bytes)
        self._process = process = self._spawned()
        try:
            _write(process, list(group.paths.values()))
            here = _line(process, _START_S)
            if here != b"here\n":
                raise CannotRun(
                    f"the filler's process did not start: {self.last_line() or 'no answer'}", field="fill",
                    remedy=f"see {self.log}",
                )  # fmt: skip
            if self.groups.idle:
                check_gives_way(process.pid, self.rank.pid, self.groups.mount)
        except (CannotRun, OSError):
            self.close()
            raise
        order = self.order
        given = {
            "filler": order.filler, "arguments": order.arguments, "pid": self.rank.pid,
            "board": None if order.by_kernel else self.rank.board, "counters": self.counters.fd, "piece_ns": order.piece_ns,
            "memory_bytes": order.memory_bytes, "paced": order.paced,
        }  # fmt: skip
        with suppress(BrokenPipeError):  # it has ended, and the next look finds why
            _write(process, given)

    def _spawned(self) -> subprocess.Popen[bytes]:
        env = os.environ | {
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
            "UNIDLE_FILL_INDEX": str(self.index), "UNIDLE_FILL_COUNT": str(self.count),
        }  # fmt: skip
        env.pop("UNIDLE_RANK_FD", None)
        command = [sys.executable, "-P", "-m", "unidle.fill.runtime.neighbour"]
        with self.log.open("ab") as stderr:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, pass_fds=(self.counters.fd,)
            )  # fmt: skip

    @property
    def rank_number(self) -> int:
        return self.rank.number

    def runs(self) -> list[tuple[int, int, int]]:
        """As :meth:`SharedCounters.runs`."""
        return self.counters.runs()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def running(self) -> bool:
        return self._process is not None and not self.ended

    def turn(self) -> None:
        """Look at it, and do what follows. Many times a second."""
        if self._process is None or self.ended:
            return
        code = self._process.poll()
        if code is not None:
            self._over(code)
            return
        verdict = self._verdict()
        if verdict.what == "end":
            self._end_process(verdict.reason)
        elif verdict.what == "freeze" and not self.frozen_when_busy:
            self.frozen_when_busy = verdict.reason
        if self.frozen_when_busy and self._group is not None:
            busy = not self.counters["open"]
            if self.board is not None and not self.order.by_kernel:
                busy = busy or not self.board.waiting_since_ns
            if busy and not self._frozen:
                self._frozen = self._group.freeze(0.1)
            elif not busy and self._frozen:
                self._group.thaw()
                self._frozen = False

    def _verdict(self) -> Verdict:
        now, begun = time.monotonic_ns(), self.counters["piece_begun_ns"]
        computed, delayed = _scheduled(self.pid)
        use = PieceUse()
        if not begun or self.counters["pacing"]:
            self._piece = (0, 0, 0)
        elif begun != self._piece[0]:
            self._piece = (begun, computed, delayed)
        else:
            # of this look on: it may have begun shortly before
            ran, waited = computed - self._piece[1], delayed - self._piece[2]
            slept = 0 if self._frozen or self.frozen_when_busy else now - begun - ran - waited
            use = PieceUse(self.counters["piece_ns"], ran, slept)
        return judge(use, self._resident(), self.order.memory_bytes, self._children_ns(now))

    def _resident(self) -> int:
        pages = read(f"/proc/{self.pid}/statm").split()
        return int(pages[1]) * os.sysconf("SC_PAGESIZE") if len(pages) > 1 else 0

    def _children_ns(self, now: int) -> int:
        """What other processes of the group computed in the last second."""
        total = self._group.cpu_ns() if self._group is not None else None
        if total is None:
            return 0
        self._cpu.append((now, total, _threads_ns(self.pid)))
        while len(self._cpu) > 2 and self._cpu[0][0] < now - 1_000_000_000:
            self._cpu.popleft()
        first, last = self._cpu[0], self._cpu[-1]
        return (last[1] - first[1]) - (last[2] - first[2])

    def _over(self, code: int) -> None:
        """Its process has ended by itself."""
        self.close()
        if code == 0:
            self.ended = "finished" if self.counters["state"] == FINISHED else "stopped"
            return
        last = self.last_line()
        why = f"signal {-code}" if code < 0 else f"code {code}"
        self._again(f"it ended with {why}{': ' + last if last else ''}", retry=code != 2)

    def _end_process(self, reason: str) -> None:
        self.close()
        self._again(reason, retry=True)

    def _again(self, reason: str, *, retry: bool) -> None:
        """Start it again, or give up. What it had begun is lost."""
        lost = self.counters["unfinished_ns"]
        self.counters.add("discarded_ns", lost)
        self.counters.add("filled_ns", -lost)
        self.endings.append(reason)
        self.frozen_when_busy, self._frozen, self._piece = "", False, (0, 0, 0)
        self._cpu.clear()
        if self._leaving:
            self.ended = reason
            return
        if not retry or len(self.endings) > self.order.restarts:
            self.ended, self.failed = reason, True
            return
        try:
            self.start()
        except (CannotRun, OSError, ValueError) as error:
            self.ended, self.failed = f"{reason}; {error}", True

    def last_line(self) -> str:
        """What it wrote last."""
        try:
            text = self.log.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()]
        return lines[-1].strip().removeprefix("unidle: ") if lines else ""

    def stop(self) -> None:
        """Let it give up what it has begun, and leave; it is not started again."""
        self._leaving = True
        self.counters["stop"] = 1
        if self._frozen and self._group is not None:
            self._group.thaw()
            self._frozen = False

    def close(self) -> None:
        """End its process and all that it started, at once."""
        if self._group is not None:
            end(self._group)
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_S)
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()

    def release(self) -> None:
        """What was shared with it, once it has ended and its sums were read."""
        self.counters.close()
        if self.board is not None:
            self.board.close()


def leave_s() -> float:
    """How long fillers may take to leave."""
    return _LEAVE_S


def _write(process: subprocess.Popen[bytes], value: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value).encode() + b"\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else b""


def _scheduled(pid: int) -> tuple[int, int]:
    """How long the main thread has computed, and was ready to and did not; in ns."""
    fields = read(f"/proc/{pid}/task/{pid}/schedstat").split()
    return (int(fields[0]), int(fields[1])) if len(fields) > 1 else (0, 0)


def _threads_ns(pid: int) -> int:
    """What all its threads have computed."""
    try:
        threads = [each.name for each in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return 0
    total = 0
    for thread in threads:
        fields = read(f"/proc/{pid}/task/{thread}/schedstat").split()
        total += int(fields[0]) if fields else 0
    return total
