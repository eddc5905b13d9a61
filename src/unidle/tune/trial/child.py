"""One run of the program as a child: what it cost, what it printed, and nothing left running."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.tune.trial.marks import StepMark, StepWatch

_SECRET: Final = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|_AUTH|AUTH_|^AWS_|^AZURE_|^GOOGLE_|^UNIDLE_|^SSH_|_PROXY$",
    re.IGNORECASE,
)
_MARK: Final = "TUNE_TRIAL_MARK"
INJECT: Final = Path(__file__).with_name("inject")
_STARTER: Final = Path(__file__).with_name("contained.py")
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class TrialRun:
    """``code`` is the exit code, negative for a signal. Times in seconds; CPU time is that of all waited-for processes."""

    code: int
    wall_s: float
    cpu_s: float
    output: str
    errors: str
    timed_out: bool = False
    marks: tuple[StepMark, ...] = ()
    stopped: bool = False
    """Ended on purpose after the last step that was to be marked."""

    @property
    def failed(self) -> str:
        """Why the run counts as failed; empty if it does not."""
        if self.stopped:
            return ""
        if self.timed_out:
            return "did not end in its time"
        if self.code:
            last = next((line for line in reversed(self.errors.splitlines()) if line.strip()), "")
            ended = f"ended with {self.code}" if self.code > 0 else f"was killed by signal {-self.code}"
            return f"{ended}: {last.strip()[:200]}" if last else ended
        return ""


def run_child(
    command: Sequence[str], folder: Path, scratch: Path, limit_s: float, more: Mapping[str, str] | None = None, watch: StepWatch | None = None
) -> TrialRun:  # fmt: skip
    """Run a command in a folder, with no input. Whatever it started is killed at the end. Errors: OSError."""
    mark = secrets.token_hex(12)
    environment = child_environment(mark, more or {})
    if watch is not None:
        environment |= watch.open(mark)
    words = contained_words(command, limit_s)
    with open(scratch / f"{mark}.out", "wb+") as out, open(scratch / f"{mark}.err", "wb+") as err:
        begin = time.monotonic()
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )  # fmt: skip
        try:
            code, usage, ended = _waited(process, begin + limit_s, watch)
            wall = time.monotonic() - begin
        finally:
            kill_all(process.pid, mark)
            if watch is not None:
                watch.close(mark)
        process.returncode = code
        printed, errors = text_of(out), text_of(err)
    for stream in (out, err):
        Path(stream.name).unlink()
    marks = tuple(watch.marks) if watch is not None else ()
    return TrialRun(code, wall, usage, printed, errors, ended == "late", marks, ended == "stopped")


def child_environment(mark: str, more: Mapping[str, str]) -> dict[str, str]:
    """That of this process without keys, and with a mark by which what a program leaves is found."""
    kept = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return kept | {_MARK: mark, "PYTHONDONTWRITEBYTECODE": "1", **more}


def contained_words(command: Sequence[str], limit_s: float) -> list[str]:
    """A command that starts another one within limits; of CPU time, eight times the wall time."""
    return [sys.executable, "-I", "-S", str(_STARTER), str(max(1, int(limit_s * 8))), *command]


def _waited(process: subprocess.Popen[bytes], end: float, watch: StepWatch | None) -> tuple[int, float, str]:
    """The exit code, the CPU seconds, and why it was killed: late, stopped or, if it ended by itself, an empty text."""
    why = ""
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, why
        late = time.monotonic() > end
        if watch is None or why:
            time.sleep(_POLL_S)
        elif watch.wait():
            why = "stopped"
        if why or late:
            why = why or "late"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def kill_all(group: int, mark: str) -> None:
    """The group of the child, and processes elsewhere that have the mark in their environment."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(5):
        found = False
        for one in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in one.read_bytes().split(b"\0"):
                    os.kill(int(one.parent.name), signal.SIGKILL)
                    found = True
        if not found:
            return


def text_of(stream: object) -> str:
    """The beginning of what was written to a file."""
    assert hasattr(stream, "seek")
    assert hasattr(stream, "read")
    stream.seek(0)
    return bytes(stream.read(4 << 20)).decode("utf-8", "replace")
