"""The process that reads the stacks of ranks (:mod:`unidle.scope.stacks`), seen from who starts it, in advance where it can."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from unidle.events.guard import RankStack

COMMAND: Final = (sys.executable, "-P", "-m", "unidle.scope.stacks")
READY_NS: Final = 30_000_000_000  # a process that nobody needed is ended
_ANSWER_BYTES: Final = 4 << 20


@dataclass(slots=True)
class StackProcess:
    """One process, and what it wrote. It is killed by :meth:`end`, and collected later by :meth:`StackProcesses.tidy`."""

    process: subprocess.Popen[bytes]
    ending: list[subprocess.Popen[bytes]]
    got: bytearray = field(default_factory=bytearray)

    @property
    def stacks(self) -> tuple[RankStack, ...]:
        """As far as they are known: of the lines that it wrote the last whole one counts."""
        return stacks_in(bytes(self.got))

    def ended(self) -> bool:
        """Take what came; True at its end."""
        assert self.process.stdout is not None
        while len(self.got) < _ANSWER_BYTES:
            try:
                data = os.read(self.process.stdout.fileno(), 1 << 16)
            except BlockingIOError:
                return False
            if not data:
                return True
            self.got += data
        return True

    def end(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.ending.append(self.process)


class StackProcesses:
    """Starts them, and one before it is needed."""

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        self._command = command
        self._ending: list[subprocess.Popen[bytes]] = []
        self._ready: tuple[StackProcess, int] | None = None

    def prepare(self, now_ns: int) -> None:
        """Have a process ready."""
        if self._ready is not None:
            self._ready = self._ready[0], now_ns
            return
        with suppress(OSError):
            self._ready = self._started(), now_ns

    def begin(self, orders: Mapping[str, Any]) -> StackProcess:
        """``orders``: a :class:`unidle.scope.stacks.StackRequest` as JSON. Errors: OSError."""
        found = self._ready[0] if self._ready is not None else self._started()
        self._ready = None
        _send(found.process, msgspec.json.encode(orders) + b"\n")
        return found

    def tidy(self, now_ns: int) -> None:
        self._ending[:] = [process for process in self._ending if process.poll() is None]
        if self._ready is not None and not 0 <= now_ns - self._ready[1] <= READY_NS:
            self._let_go()

    def close(self) -> None:
        self._let_go()
        for process in self._ending:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    def _let_go(self) -> None:
        if self._ready is not None:
            self._ready[0].end()
            self._ready = None

    def _started(self) -> StackProcess:
        process = subprocess.Popen(
            self._command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        return StackProcess(process, self._ending)


def _send(process: subprocess.Popen[bytes], orders: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # it has ended: its answer is missing
        os.write(process.stdin.fileno(), orders)  # less than a pipe holds
    process.stdin.close()


def stacks_in(out: bytes) -> tuple[RankStack, ...]:
    """Of the lines that the process wrote the last whole one; empty without one."""
    stacks: tuple[RankStack, ...] = ()
    for line in out.split(b"\n")[:-1]:
        with suppress(msgspec.DecodeError):
            stacks = msgspec.json.decode(line, type=tuple[RankStack, ...])
    return stacks


def joined(stacks: Sequence[RankStack]) -> list[RankStack]:
    """Ranks that stand at the same place as one entry."""
    by: dict[RankStack, list[int]] = {}
    for stack in stacks:
        by.setdefault(msgspec.structs.replace(stack, ranks=()), []).extend(stack.ranks)
    return [msgspec.structs.replace(stack, ranks=tuple(sorted(ranks))) for stack, ranks in by.items()]


def within(stacks: Sequence[RankStack], room: int) -> tuple[RankStack, ...]:
    """As many frames as there is room for in bytes, those of the rarest places first."""
    kept = {}
    for stack in sorted(stacks, key=lambda one: len(one.ranks)):
        room -= len(msgspec.json.encode(stack))
        kept[stack.ranks] = (
            stack
            if room >= 0
            else msgspec.structs.replace(stack, frames=(), why_not="no room for its frames")
        )
    return tuple(kept[stack.ranks] for stack in stacks)
