"""Follows the journal of systemd through ``journalctl``: kernel messages, and those of the GPU driver's services."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Final

from unidle.guard.log import LogLine, Splitter
from unidle.guard.log.model import SPEAKERS

_BLOCK_BYTES: Final = 1 << 16
_POLLS_BETWEEN_TRIES: Final = 20
_ERROR_BYTES: Final = 2000
_STOP_S: Final = 2.0


class JournalSource:
    """A :class:`~unidle.probe.log_watch.LogSource` on ``journalctl --follow --output=json``.

    Its position is the journal's cursor. With one it continues after it, also after a boot; without one it starts with
    new entries. The pipe is bounded: if lines come faster than they are read, ``journalctl`` waits and none is lost.
    ``extra`` are further arguments, such as ``--directory=`` for the journal of another machine.
    """

    name = "journal"
    lost = 0

    def __init__(
        self,
        position: str = "",
        *,
        most_bytes: int = 4 << 20,
        command: str = "journalctl",
        extra: tuple[str, ...] = (),
    ) -> None:
        self._cursor = position
        self._most_bytes = most_bytes
        self._command = command
        self._extra = extra
        self._splitter = Splitter()
        self._process: subprocess.Popen[bytes] | None = None
        self._why: str | None = None
        self._wait = 0  # polls until the next try
        self._start()

    def _start(self) -> None:
        found = shutil.which(self._command)
        if found is None:
            self._why = f"{self._command} is not installed; follow /dev/kmsg or a log file instead"
            return
        since = [f"--after-cursor={self._cursor}"] if self._cursor else ["--lines=0"]
        # `--dmesg` would only know this boot; terms joined by `+` are alternatives
        terms = ["_TRANSPORT=kernel"]
        for speaker in sorted(SPEAKERS - {"systemd"}):
            terms += ["+", f"SYSLOG_IDENTIFIER={speaker}"]
        self._process = subprocess.Popen(
            [found, "--follow", "--output=json", "--quiet", "--no-pager", *since, *self._extra, *terms],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._why = None

    def poll(self) -> list[LogLine]:
        if self._process is None:
            self._wait -= 1
            if self._wait > 0:
                return []
            self._start()
            if self._process is None:
                self._wait = _POLLS_BETWEEN_TRIES
                return []
        ended = self._process.poll() is not None  # asked first: what it wrote before is still read below
        lines = self._read()
        if ended and not lines:
            self._ended()
        if lines:
            self._cursor = _cursor(lines[-1].data) or self._cursor
        return lines

    def _read(self) -> list[LogLine]:
        lines: list[LogLine] = []
        assert self._process is not None
        assert self._process.stdout is not None
        budget = self._most_bytes
        while budget > 0:
            try:
                block = os.read(self._process.stdout.fileno(), _BLOCK_BYTES)
            except BlockingIOError:
                break
            if not block:
                break
            budget -= len(block)
            lines += self._splitter.feed(block)
        return lines

    def _ended(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        try:
            text = os.read(self._process.stderr.fileno(), _ERROR_BYTES).decode("utf-8", "replace").strip()
        except BlockingIOError:
            text = ""
        said = text.splitlines()[-1] if text else f"exit code {self._process.returncode}"
        self._why = f"journalctl ended: {said}; it is tried again"
        self._release()
        self._wait = _POLLS_BETWEEN_TRIES

    def why_not(self) -> str | None:
        return self._why

    def position(self) -> str:
        return self._cursor

    def news_fd(self) -> int:
        if self._process is None or self._process.stdout is None:
            return -1
        return self._process.stdout.fileno()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._release()

    def _release(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()
            self._process.wait()
        self._process = None
        self._splitter.forget()


def _cursor(line: bytes) -> str:
    try:
        record = json.loads(line)
    except ValueError:
        return ""
    return str(record.get("__CURSOR", "")) if isinstance(record, dict) else ""
