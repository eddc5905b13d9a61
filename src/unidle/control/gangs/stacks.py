"""Profiles all ranks of a gang that hangs once before it is stopped: in a separate process, for a second at most.

The loop starts the process, continues, and takes the result at a later turn; only the order to stop that gang waits
for it. The process is started in advance when a gang has been silent for a while, so that its start does not use up
the second.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from unidle.events import types as ev
from unidle.guard.stacks import in_words, odd_ranks
from unidle.jobs import Reason
from unidle.view.jobs import AttemptView

COMMAND: Final = (sys.executable, "-P", "-m", "unidle.scope.stacks")
LIMIT_NS: Final = 1_000_000_000  # where a stop waits for it
PATIENT_NS: Final = 5_000_000_000  # where nothing does
READY_NS: Final = 30_000_000_000  # a process that nobody needed is ended
AT_ONCE: Final = 4
LOOKS_PER_ATTEMPT: Final = 8
KEPT_BYTES: Final = 48 << 10  # of one look in the log
_ANSWER_BYTES: Final = 4 << 20
_LATE: Final = "the snapshot did not end in time"

_Key = tuple[str, int]


@dataclass(slots=True)
class _Look:
    ranks: int
    begun_ns: int
    waited: bool = False  # a stop waits for it
    process: subprocess.Popen[bytes] | None = None
    why_not: str = ""
    out: bytearray = field(default_factory=bytearray)


class GangStacks:
    """Profiles gangs whose run directories are below ``root``."""

    def __init__(self, root: Path, command: tuple[str, ...] = COMMAND) -> None:
        self._root, self._command = root, command
        self._looks: dict[_Key, _Look] = {}
        self._counts: dict[_Key, int] = {}
        self._ending: list[subprocess.Popen[bytes]] = []
        self._ready: tuple[subprocess.Popen[bytes], int] | None = None

    def prepare(self, now_ns: int) -> None:
        """Have a process ready: a gang may turn out to hang."""
        if self._ready is not None:
            self._ready = self._ready[0], now_ns
            return
        with suppress(OSError):
            self._ready = _started(self._command), now_ns

    @property
    def pending(self) -> bool:
        """Whether :meth:`take` has to be called again soon."""
        return bool(self._looks)

    def begin(self, job: str, attempt: AttemptView, now_ns: int) -> None:
        """Look at the attempt now, unless that is under way or was done often enough."""
        key = (job, attempt.number)
        if key in self._looks or self._counts.get(key, 0) >= LOOKS_PER_ATTEMPT:
            return
        self._counts[key] = self._counts.get(key, 0) + 1
        self._looks[key] = look = _Look(len(attempt.ranks), now_ns)
        if sum(one.process is not None for one in self._looks.values()) >= AT_ONCE:
            look.why_not = "too many other gangs hung in the same second"
            return
        orders = {"root": str(self._root), "job": job, "attempt": attempt.number, "ranks": look.ranks}
        try:
            look.process = self._ready[0] if self._ready is not None else _started(self._command)
            self._ready = None
            _send(look.process, msgspec.json.encode(orders) + b"\n")
        except OSError as error:
            look.why_not = f"the snapshot could not be started: {error.strerror}"

    def holds(self, job: str, attempt: AttemptView, now_ns: int) -> bool:
        """Whether the order to stop this attempt has to wait for the look at it; it begins one where there was none."""
        key = (job, attempt.number)
        if attempt.stacks is None and key not in self._counts:
            self.begin(job, attempt, now_ns)
        if key in self._looks:
            self._looks[key].waited = True
        return key in self._looks

    def take(self, now_ns: int) -> Iterator[ev.StacksTaken]:
        """The looks that have ended or whose time is over."""
        self._ending = [process for process in self._ending if process.poll() is None]
        if self._ready is not None and not 0 <= now_ns - self._ready[1] <= READY_NS:
            self._let_go()
        for key, look in list(self._looks.items()):
            ended = look.process is None or _read(look)
            limit_ns = LIMIT_NS if look.waited else PATIENT_NS
            if ended or not 0 <= now_ns - look.begun_ns < limit_ns:
                del self._looks[key]
                self._end(look)
                yield found(*key, look.ranks, bytes(look.out), look.why_not or ("" if ended else _LATE))

    def close(self) -> None:
        """End what looks still."""
        for look in self._looks.values():
            self._end(look)
        self._looks.clear()
        self._let_go()
        for process in self._ending:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    def _let_go(self) -> None:
        if self._ready is not None:
            self._end(_Look(0, 0, process=self._ready[0]))
            self._ready = None

    def _end(self, look: _Look) -> None:
        if look.process is None:
            return
        look.process.kill()
        for pipe in (look.process.stdin, look.process.stdout):
            if pipe is not None:
                pipe.close()
        self._ending.append(look.process)


def _started(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    return process


def _send(process: subprocess.Popen[bytes], orders: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # it has ended: its answer is missing
        os.write(process.stdin.fileno(), orders)  # less than a pipe holds
    process.stdin.close()


def _read(look: _Look) -> bool:
    """Take what came; True at its end."""
    assert look.process is not None
    assert look.process.stdout is not None
    while len(look.out) < _ANSWER_BYTES:
        try:
            data = os.read(look.process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            return True
        look.out += data
    return True


def found(job: str, attempt: int, ranks: int, out: bytes, why_not: str) -> ev.StacksTaken:
    """The event of what a look wrote: of its lines the last whole one counts. ``why_not``: why there may be none."""
    stacks: tuple[ev.RankStack, ...] = ()
    for line in out.split(b"\n")[:-1]:
        with suppress(msgspec.DecodeError):
            stacks = msgspec.json.decode(line, type=tuple[ev.RankStack, ...])
    if not stacks:
        text = f"the stacks of the gang's ranks could not be taken: {why_not or 'the snapshot ended without a result'}"
        return ev.StacksTaken(job, attempt, Reason("stacks", text))
    known = {rank for stack in stacks for rank in stack.ranks}
    if missing := tuple(sorted(set(range(ranks)) - known)):
        stacks = (*stacks, ev.RankStack(missing, "unknown", why_not=why_not or "it was not found"))
    odd = odd_ranks(stacks)
    whys = {stack.why_not for stack in stacks if stack.why_not}
    text = in_words(stacks, odd) + (f"; no Python lines: {'; '.join(sorted(whys)[:2])}" if whys else "")
    return ev.StacksTaken(job, attempt, Reason("stacks", text[:2000]), _within(stacks), odd)


def _within(stacks: tuple[ev.RankStack, ...]) -> tuple[ev.RankStack, ...]:
    """As many frames as there is room for, those of the rarest places first."""
    room, kept = KEPT_BYTES, {}
    for stack in sorted(stacks, key=lambda one: len(one.ranks)):
        room -= len(msgspec.json.encode(stack))
        kept[stack.ranks] = (
            stack
            if room >= 0
            else msgspec.structs.replace(stack, frames=(), why_not="no room for its frames")
        )
    return tuple(kept[stack.ranks] for stack in stacks)
