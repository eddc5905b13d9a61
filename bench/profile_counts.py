"""Counts compared with exact ones: operators compared with torch.profiler, allocations compared with the process itself, calls of a CUDA stub compared with the stub's program.

Each program waits until it is looked at, does its work at a pace that the governor lets through, and says what it did. The look is the command's:
its default budget for probes is in force.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _process import environment
from _profiled import JOBS
from _table import Row, main
from unidle.scope.model import Profile
from unidle.scope.tiers import watch

LIMIT_S = 120
CUDA_CALLS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize")
LIBRARY = """
#include <stddef.h>
#include <unistd.h>
int cudaLaunchKernel(void *f) { return 0; }
int cudaMemcpyAsync(void *to, void *from, size_t n, int kind, void *stream) { return 0; }
int cudaStreamSynchronize(void *s) { usleep(500); return 0; }
"""
# Reads a line, makes its calls in some seconds, and says how many; then waits for a line again.
PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int cudaLaunchKernel(void *), cudaMemcpyAsync(void *, void *, size_t, int, void *), cudaStreamSynchronize(void *);
int main(int argc, char **argv) {
    int rounds = atoi(argv[1]), n = 0;
    char line[8];
    puts("ready"); fflush(stdout); fgets(line, 8, stdin);
    for (; n < rounds; n++) {
        for (int k = 0; k < 16; k++) cudaLaunchKernel(0);
        cudaMemcpyAsync(0, 0, 4096, 1, 0);
        cudaStreamSynchronize(0);
        usleep(15000);
    }
    printf("{\\"cudaLaunchKernel\\": %d, \\"cudaMemcpyAsync\\": %d, \\"cudaStreamSynchronize\\": %d, \\"bytes\\": %d}\\n", 16 * n, n, n, 4096 * n);
    fflush(stdout); fgets(line, 8, stdin);
    return 0;
}
"""


def rows(given: argparse.Namespace) -> Iterator[Row]:
    rounds = 50 if given.quick else given.rounds
    steps = 10 if given.quick else given.steps
    yield from _operators(steps)
    yield from _allocations(rounds)
    yield from _cuda(rounds)


def _operators(steps: int) -> Iterator[Row]:
    told, seen = _counted([sys.executable, str(JOBS / "counted.py"), str(steps)], operators=True)
    mine: Counter[str] = Counter()
    for call in seen.calls:
        if call.kind == "operator":
            mine[told["names"].get(call.name, call.name)] += call.count
    peer = Counter(told["events"])
    wrong = [f"{name} {mine[name]} for {peer[name]}" for name in sorted({*mine, *peer}) if mine[name] != peer[name]]  # fmt: skip
    what = f"measured here, {steps} training steps, {len(peer)} operators compared by name"
    yield _row("operator calls", mine.total(), peer.total(), "torch.profiler", wrong, what, seen)


def _allocations(rounds: int) -> Iterator[Row]:
    """Of the loop's tensors, which are megabytes: what the interpreter and libraries need is not known to the process."""
    told, seen = _counted([sys.executable, str(JOBS / "allocating.py"), "--rounds", str(rounds)], memory=True)
    own = [held for held in seen.memory if held.allocated_bytes > 1e6 * held.allocations]
    mine = {
        "allocations": sum(held.allocations for held in own),
        "allocated_bytes": sum(held.allocated_bytes for held in own),
        "live_bytes": sum(held.live_bytes for held in own),
    }
    for name, count in mine.items():
        wrong = [] if count == told[name] else [f"{count} for {told[name]}"]
        what = f"measured here, {told['allocations']} tensors of 3 and 17 MB"
        yield _row(f"tensors' memory: {name.replace('_', ' ')}", count, told[name], "the process itself", wrong, what, seen)  # fmt: skip


def _cuda(rounds: int) -> Iterator[Row]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("no C compiler: the CUDA stub is skipped", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="unidle-stub-") as place:
        library, program = Path(place) / "libcudart.so.12", Path(place) / "user"
        _compile(compiler, LIBRARY, library, "-shared", "-fPIC")
        _compile(compiler, PROGRAM, program, f"-Wl,-rpath,{place}", str(library))
        told, seen = _counted([str(program), str(rounds)])
    mine = Counter({name: sum(c.count for c in seen.calls if c.name == name) for name in CUDA_CALLS})
    mine["bytes"] = sum(c.n_bytes for c in seen.calls if c.name == "cudaMemcpyAsync")
    wrong = [f"{name} {mine[name]} for {count}" for name, count in told.items() if mine[name] != count]
    what = "measured here, a stub of libcudart: launches, copies (and their bytes) and waits compared by name"
    mine_calls, calls = (sum(found[name] for name in CUDA_CALLS) for found in (mine, told))
    yield _row("CUDA calls of a stub", mine_calls, calls, "the program itself", wrong, what, seen)


def _row(what: str, mine: int, peer: int, name: str, wrong: Sequence[str], how: str, seen: Profile) -> Row:
    if wrong:
        how += f"; wrong: {', '.join(wrong[:3])}; notes: {'; '.join(seen.quality.notes) or 'none'}"
    unit = "bytes" if "bytes" in what else "calls"
    return Row(what, unit, mine, peer, name, goal="the same", holds=not wrong, how=how)


def _counted(
    command: Sequence[str], *, operators: bool = False, memory: bool = False
) -> tuple[dict[str, Any], Profile]:
    """What a program says that it did between its two lines, and what was seen of it."""
    env = environment(OMP_NUM_THREADS="1")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _read(process.stdout.readline(), command)
            with watch([process.pid], operators=operators, memory=memory) as watched:
                watched.run(0.5)
                process.stdin.write(b"go\n")
                process.stdin.flush()
                for _ in range(LIMIT_S * 5):
                    watched.run(0.2)
                    if select.select([process.stdout], [], [], 0)[0]:
                        break
                told = json.loads(_read(process.stdout.readline(), command))
                watched.run(0.3)
                return told, watched.take()
        finally:
            process.kill()


def _read(line: bytes, command: Sequence[str]) -> bytes:
    if not line:
        sys.exit(f"{Path(command[-1]).name} ended")
    return line


def _compile(compiler: str, source: str, into: Path, *options: str) -> None:
    code = into.with_suffix(".c")
    code.write_text(source)
    subprocess.run([compiler, "-O1", "-fno-builtin", "-w", "-o", into, code, *options], check=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=60, help="training steps whose operators are counted")
    parser.add_argument("--rounds", type=int, default=400, help="of allocations, and of calls of the stub")
    parser.add_argument("--quick", action="store_true", help="fewer of all, to try it")


if __name__ == "__main__":
    main("profile_counts", rows, add_arguments)
