"""Notices to a file and to a command."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
from typing import Final

from unidle.notices.line import Answer

COMMAND_S: Final = 30.0


def append(path: str, body: bytes) -> Answer:
    """Append one line. The file is opened again each time, so that it may be moved away between two lines."""
    try:
        # without O_NONBLOCK a pipe that nobody reads would be waited for
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return Answer("again", "is not a file")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(file, body)
        finally:
            os.close(file)
    except OSError as error:
        return Answer("again", (error.strerror or "cannot be written").lower())
    return Answer("done")


def _write(file: int, body: bytes) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":  # a line that was cut off by a full disk
        body = b"\n" + body
    left = memoryview(body + b"\n")
    try:
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        raise


def run(argv: tuple[str, ...], body: bytes, limit_s: float = COMMAND_S) -> Answer:
    """Run a command with the notice on its standard input; it has to exit 0 within ``limit_s``."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        return Answer("again", f"cannot be run: {(text or 'not a command').lower()}")
    try:
        process.communicate(body + b"\n", timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        return Answer("again", f"did not end within {limit_s:g} s, and was killed")
    if process.returncode:
        how = (
            f"exited {process.returncode}"
            if process.returncode > 0
            else f"was killed by signal {-process.returncode}"
        )
        return Answer("again", how)
    return Answer("done")
