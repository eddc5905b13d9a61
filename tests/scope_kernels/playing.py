"""Programs that use a CUDA driver and a CUPTI that are played, and obey lines of their standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unidle.errors import BadInput
from unidle.scope.tiers.foreign.kernels import CuptiLog, parse

SOURCE = Path(__file__).with_name("played_cupti.c")
PROGRAM = """
import ctypes, os, sys, time
cupti = ctypes.CDLL("libcupti.so.12") if "--no-cupti" not in sys.argv else None
names = {name: ctypes.create_string_buffer(name.encode()) for name in ("_Z4gemmPf", "ncclDevKernel_AllReduce")}
def kernel(n, name="_Z4gemmPf", ns=1000, device=0):
    for i in range(n):
        cupti.played_kernel(names.setdefault(name, ctypes.create_string_buffer(name.encode())), device, 7, i + 1, ctypes.c_uint64(ns))
def copy(n):
    for _ in range(n):
        cupti.played_copy(1, ctypes.c_uint64(4096), ctypes.c_uint64(500))
def fork():
    if (child := os.fork()) == 0:
        kernel(50, "_Z5childv")
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
def busy():
    print("busy", flush=True)
    while True:
        kernel(10)
        time.sleep(0.005)
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


def build(into: Path) -> Path:
    """The folder with both libraries."""
    for name, options in (("libcuda.so.1", ["-DDRIVER"]), ("libcupti.so.12", [])):
        command = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
        subprocess.run([*command, *options, "-o", into / name, SOURCE], check=True)
    return into


class Program:
    """One that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid

    def do(self, line: str) -> None:
        """Have it run a line of Python, to its end."""
        self.send(line)
        assert self.line() == "done", line

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        """Its exit code, after its input has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)


@contextmanager
def program(library: Path, environ: Mapping[str, str], *arguments: str) -> Iterator[Program]:
    """One with these variables, once CUDA has started in it."""
    env = os.environ | {"LD_LIBRARY_PATH": str(library)} | environ
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:  # fmt: skip
        try:
            found = Program(process)
            assert found.line() == "ready"
            yield found
        finally:
            process.kill()


def files(folder: Path, pid: int | None = None) -> list[Path]:
    """By generation."""
    found = folder.glob(f"{pid or '*'}-*.kernels")
    return sorted(found, key=lambda path: int(path.stem.rpartition("-")[2]))


def log_of(path: Path) -> CuptiLog:
    return parse(path.read_bytes(), path.name)


def rows(folder: Path, pid: int | None = None) -> list[dict[str, Any]]:
    """Records of all files, with their names."""
    found = []
    for path in files(folder, pid):
        try:
            log = log_of(path)
        except (BadInput, FileNotFoundError):
            continue  # its header is being written, or it was the oldest
        for part in log.rows:
            for row in part:
                one = {name: int(row[name]) for name in part.dtype.names or ()}
                found.append(one | {"text": log.names.get(one["name"], ""), "pid": log.pid})
    return found
