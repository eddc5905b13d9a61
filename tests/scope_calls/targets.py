"""Programs that do an exact number of things when told to, and what was counted of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVERYTHING = 1e9  # a budget that nothing exceeds, in percent of a CPU


@dataclass
class Target:
    """A program that prints a line after each step, and goes on when it gets one."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.wait()}"
        return line.strip()

    def step(self) -> str:
        """Lets it go on, and gives what it says after its next step."""
        self.go()
        return self.line()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def started(command: Sequence[str | Path], env: dict[str, str] | None = None) -> Iterator[Target]:
    with subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=env,
    ) as process:
        target = Target(process)
        try:
            yield target
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True)
            process.kill()


def python(source: str) -> list[str]:
    head = (
        "import os, sys\nos.environ['OMP_NUM_THREADS'] = '1'\n"
        "def step(said='done'):\n    print(said, flush=True)\n    sys.stdin.readline()\n"
    )
    return [sys.executable, "-c", head + textwrap.dedent(source)]


C_HEAD = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void step(void) { char b; write(1, "done\\n", 5); if (read(0, &b, 1) != 1) _exit(0); }
"""


def compiled(source: str, into: Path, *options: str, head: str = C_HEAD, compiler: str = "gcc") -> Path:
    code = into.with_suffix(".cc" if compiler == "g++" else ".c")
    code.write_text(head + textwrap.dedent(source))
    subprocess.run(
        [compiler, "-O1", "-fno-builtin", "-w", "-o", into, code, *options], check=True, capture_output=True
    )
    return into


@contextmanager
def counting(pids: Sequence[int], **wanted: Any) -> Iterator[Any]:
    """A :class:`unidle_scope.Calls` of only what is asked for."""
    import unidle_scope

    calls = unidle_scope.Calls(list(pids), {"only": True, "budget_pct": EVERYTHING} | wanted)
    try:
        yield calls
    finally:
        calls.close()


def counts(taken: dict[str, Any], pid: int | None = None) -> Counter[str]:
    """How often each function was called."""
    sums: Counter[str] = Counter()
    for row in taken["calls"]:
        if pid in (None, row[0]):
            sums[row[2]] += row[4]
    return sums


def n_bytes(taken: dict[str, Any], name: str) -> int:
    return sum(row[6] for row in taken["calls"] if row[2] == name)


def held(taken: dict[str, Any], device: str = "host") -> tuple[int, int, int, int]:
    """Bytes allocated, allocations, bytes live, blocks live, over all places."""
    rows = [row[3:7] for row in taken["memory"] if row[2] == device]
    a, b, c, d = (sum(column) for column in zip(*rows, strict=True)) if rows else (0, 0, 0, 0)
    return a, b, c, d


def functions_of(taken: dict[str, Any], stack: int) -> list[str]:
    """The function names of a stack, root first."""
    return [taken["frames"][n][1] for n in taken["stacks"][stack]]
