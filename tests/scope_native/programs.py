"""Small programs to look at, and a way to run one until it says that it is ready."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def running(
    source: str, *, before: Sequence[str] = (), python: str = sys.executable
) -> Iterator[subprocess.Popen[str]]:
    """A Python program that has printed ``ready``. It is killed at the end, with the children in its group."""
    source = "import os, sys, threading, time\n" + textwrap.dedent(source)
    command = [*before, python, "-c", source]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), f"the program said {line!r}"
            yield process
        finally:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], capture_output=True)
            process.kill()


SPIN = """
def spin():
    n = 0
    while True:
        for i in range(1000):
            n += i
"""

MIXED = (
    SPIN
    + """
def naps():
    while True:
        time.sleep(0.003)
def waits():
    threading.Event().wait()
for f in (naps, waits, waits):
    threading.Thread(target=f, daemon=True).start()
print("ready", flush=True)
spin()
"""
)
