"""Profiles of ranks on this host, made for a command on the controller's machine: one process for each, and its file in parts."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from unidle import private

COMMAND: Final = (sys.executable, "-P", "-m", "unidle.api.rank_profile")
AT_ONCE: Final = 4
KEPT_S: Final = 600.0
"""So long a file stays for who asked for it."""
MOST_S: Final = 3600.0
_MORE_S: Final = 120.0  # for its start and its symbols
_PART_BYTES: Final = 256 * 1024
_MOST_BYTES: Final = 64 << 20
_ERROR_BYTES: Final = 4096


class ProfileOrder(msgspec.Struct, frozen=True):
    """Profile ranks of an attempt; or with ``name`` alone a part of the file that was made, or the early ``end``.

    ``name`` is chosen by the command that requests it, and identifies the profile.
    """

    name: str
    job: str = ""
    attempt: int = 0
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    how: dict[str, Any] = {}
    children: bool = True
    offset: int = 0
    end: bool = False


@dataclass(slots=True)
class _Running:
    name: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    until_s: float


class Profiles:
    """Files are below ``place``, which is made empty."""

    def __init__(self, place: Path) -> None:
        self._place = place
        shutil.rmtree(place, ignore_errors=True)
        private.make_directory(place)
        self._running: dict[int, _Running] = {}  # by command
        self._kept: dict[str, float] = {}  # finished: until when

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def begin(self, command: int, order: ProfileOrder, root: Path) -> None:
        """Profile ranks whose run directories are below ``root``. Errors: ValueError, OSError."""
        if not 0 < order.seconds <= MOST_S:
            raise ValueError(f"a profile takes at most {MOST_S:.0f} s")
        if len(self._running) >= AT_ONCE:
            raise ValueError(f"{AT_ONCE} profiles are made on this host now; try again later")
        request = {
            "root": str(root), "job": order.job, "attempt": order.attempt, "ranks": list(order.ranks),
            "seconds": order.seconds, "how": order.how, "children": order.children, "out": str(self._file(order.name)),
        }  # fmt: skip
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - read at its end
        try:
            process = subprocess.Popen(
                COMMAND, bufsize=0, stdin=subprocess.PIPE, stdout=errors, stderr=subprocess.DEVNULL, start_new_session=True
            )  # fmt: skip
        except OSError:
            errors.close()
            raise
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
        until_s = time.monotonic() + order.seconds + _MORE_S
        self._running[command] = _Running(order.name, process, errors, until_s)

    def end(self, name: str) -> None:
        """End a look early; what was seen is kept."""
        for one in self._running.values():
            if one.name == name and one.process.stdin is not None:
                one.process.stdin.close()

    def part(self, name: str, offset: int) -> dict[str, Any]:
        """Part of a finished profile. Errors: ValueError, OSError."""
        if name not in self._kept:
            raise ValueError("there is no such profile on this host any more")
        with open(self._file(name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(offset, 0))
            data = file.read(_PART_BYTES)
        return {"text": base64.b64encode(data).decode("ascii"), "size": size}

    def ended(self) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Answers to looks that have ended: command, why there is no profile, and its size."""
        for command, one in list(self._running.items()):
            late = time.monotonic() >= one.until_s
            if one.process.poll() is None and not late:
                continue
            del self._running[command]
            self._kill(one)
            yield command, *self._outcome(one, late=late)

    def tidy(self) -> None:
        """Delete files that were kept for long enough."""
        for name in [name for name, until_s in self._kept.items() if time.monotonic() >= until_s]:
            del self._kept[name]
            self._file(name).unlink(missing_ok=True)

    def lost(self) -> None:
        """The connection broke: nothing waits for the answers."""
        for one in self._running.values():
            self._kill(one)
            one.errors.close()
        self._running.clear()

    def close(self) -> None:
        self.lost()
        shutil.rmtree(self._place, ignore_errors=True)

    def _outcome(self, one: _Running, *, late: bool) -> tuple[str, dict[str, Any]]:
        with one.errors as errors:
            errors.seek(0)
            text = errors.read(_ERROR_BYTES)
        file = self._file(one.name)
        if one.process.returncode == 0 and file.exists():
            size = file.stat().st_size
            if size <= _MOST_BYTES:
                self._kept[one.name] = time.monotonic() + KEPT_S
                return "", {"size": size}
            file.unlink()
            return (
                f"the profile has {size} bytes, and at most {_MOST_BYTES} are sent; profile for a shorter time",
                {},
            )
        file.unlink(missing_ok=True)
        if late:
            return "the profile did not end in time", {}
        try:
            told = json.loads(text)
            return str(told["problem"]), {"remedy": str(told["remedy"])}
        except (ValueError, KeyError, TypeError):
            return f"the profiler ended with code {one.process.returncode}", {}

    def _file(self, name: str) -> Path:
        """Errors: ValueError for a name that is none of ours."""
        if not (name.isascii() and name.isalnum() and len(name) <= 64):
            raise ValueError("a profile has a name of letters and digits")
        return self._place / f"{name}.json.gz"

    def _kill(self, one: _Running) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        if one.process.stdin is not None:
            one.process.stdin.close()
