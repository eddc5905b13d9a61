"""Small programs of C, compiled and stripped as distributions do it, and a way to run one until it says that it is ready."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# No function here is exported: without its symbol table the file says nothing of their names.
SPINS = """
#include <unistd.h>
static __attribute__((noinline)) long hidden_leaf(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum += i;
    return sum;
}
static __attribute__((noinline)) long hidden_middle(long n) { return hidden_leaf(n) + 1; }
int main(void) {
    if (write(1, "ready\\n", 6) != 6) return 1;
    for (;;) hidden_middle(1000000);
}
"""


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compiled(source: str, into: Path, *options: str) -> Path:
    """A program (or, with ``-shared``, a library) of this source."""
    code = into.with_name(into.name + ".c")
    code.write_text(source)
    run("gcc", "-O1", "-fno-inline", "-fno-optimize-sibling-calls", "-w", "-o", into, code, *options)
    return into


def stripped(program: Path) -> Path:
    """Takes the symbols out of a program; gives the file that has them."""
    debug = program.with_name(program.name + ".debug")
    run("objcopy", "--only-keep-debug", program, debug)
    run("objcopy", "--strip-all", program)
    return debug


def build_id(program: Path) -> str:
    lines = run("readelf", "--notes", program).splitlines()
    return next(line.split()[-1] for line in lines if "Build ID" in line)


@contextmanager
def started(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True)
            process.kill()


def offsets(library: Path, names: Sequence[str]) -> list[int]:
    """Where these exported functions lie in the file (its first segment begins at 0)."""
    rows = [line.split() for line in run("nm", "-D", "--defined-only", library).splitlines()]
    places = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
    return [places[name] for name in names]
