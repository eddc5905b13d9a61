"""Stacks of ranks on this machine: a process reads them, which is started in advance so that its start takes no time."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from unidle.scope.stack_process import COMMAND, StackProcess, StackProcesses
from unidle.view.jobs import AttemptView

LIMIT_NS: Final = 1_000_000_000


class LocalStacks:
    """Of gangs whose run directories are below ``root``."""

    limit_ns: Final = LIMIT_NS

    def __init__(self, root: Path, command: tuple[str, ...] = COMMAND) -> None:
        self._root = root
        self._processes = StackProcesses(command)

    def prepare(self, now_ns: int, nodes: Collection[str]) -> None:  # noqa: ARG002 - all are on this machine
        """Have a process ready."""
        self._processes.prepare(now_ns)

    def begin(self, job: str, attempt: AttemptView) -> StackProcess:
        """Errors: OSError."""
        ranks = len(attempt.ranks)
        return self._processes.begin(
            {"root": str(self._root), "job": job, "attempt": attempt.number, "ranks": ranks}
        )

    def tidy(self, now_ns: int) -> None:
        self._processes.tidy(now_ns)

    def close(self) -> None:
        self._processes.close()
