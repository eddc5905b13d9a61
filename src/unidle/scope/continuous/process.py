"""Keeps a low-priority process running that profiles ranks, or keeps the profiles of other hosts.

A thread communicates with that process. So a process that hangs, is killed or cannot be started does not delay the
controller or agent, which takes its findings in each of its turns.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.fleet.policies import ProfilePolicy
from unidle.store.profiles import ProfileRow

COMMAND: Final = (sys.executable, "-P", "-m", "unidle.scope.continuous")
FIRST_PAUSE_S: Final = 1.0  # before it is started again; doubled each time
MOST_PAUSE_S: Final = 300.0
WELL_S: Final = 300.0  # who ran for so long starts again with the first pause
SILENT_S: Final = 60.0  # more than it said itself, and it hangs
_REFUSED: Final = 3  # exit codes of the process: see unidle.scope.continuous.worker
_LOST: Final = 4
_KEPT: Final = 1024  # events that nobody takes
_LINE_MOST: Final = 16 << 20
_POLL_S: Final = 1.0
_KINDS: Final = frozenset({"budget_measured", "steps_watched", "profiler_set"})
_ROW: Final = "row"
MOST_BYTES: Final = 8 << 20
"""Of profiles that wait: the oldest are dropped."""

Live = tuple[tuple[str, int, int], ...]  # job, attempt, ranks


@dataclass(frozen=True, slots=True)
class ProfilerOrders:
    """What the process receives at its start (:class:`unidle.scope.continuous.worker.WorkerConfig`). ``store`` has its password."""

    store: str
    run_root: str
    token: int
    offset_ns: int
    policy: ProfilePolicy
    runs: str = ""


@dataclass(slots=True)
class _Talk:
    """One process, and the data exchanged with it so far."""

    process: subprocess.Popen[bytes]
    errors: Path
    begun_s: float
    heard_s: float  # until then it need not be heard of
    out: bytearray = field(default_factory=bytearray)  # not written yet
    rest: bytearray = field(default_factory=bytearray)  # of a line that is not whole
    told: Live | None = None


class ProfilerProcess:
    """Keeps one process going while there is something to do. What it writes to its standard error is in ``errors``.

    ``command``: what is run, where that is not :data:`COMMAND`.
    """

    def __init__(self, orders: ProfilerOrders, errors: Path, *, command: Sequence[str] = ()) -> None:
        self._orders, self._errors = orders, errors
        self._command = tuple(command or COMMAND)
        self._lock = threading.Lock()
        self._live: Live = ()
        self._found: list[ev.Event] = []
        self._rows = ProfileQueue()  # found, and not taken yet
        self._given = ProfileQueue()  # to be kept
        self._why_not: str | None = None  # as it was last said
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._end = False
        self._pid: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process that profiles now; None without one."""
        return self._pid

    def attend(self, live: Live) -> None:
        """These attempts run now."""
        if live != self._live:
            self._live = live
            self._begin_thread()

    def keep(self, rows: Iterable[ProfileRow]) -> None:
        """Have these written to the store."""
        with self._lock:
            self._given.add(rows)
        self._begin_thread()

    def found(self) -> list[ev.Event]:
        """The findings since the last call."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def rows(self) -> list[ProfileRow]:
        """The profiles since the last call, of a process without a store."""
        with self._lock:
            return self._rows.take()

    def _begin_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unidle-profiler", daemon=True)
            self._thread.start()
        self._wake()

    def close(self) -> None:
        """End the process; findings that it has not reported are lost."""
        self._end = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for fd in (self._wake_r, self._wake_w):
            with suppress(OSError):
                os.close(fd)
        self._wake_r = self._wake_w = -1

    # -- the thread --------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return bool(self._live or self._given)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._end:
            if not self._busy:
                self._rest(None)
                continue
            began_s = time.monotonic()
            code = self._one_life()
            if code == _LOST:
                return  # another controller has the store, and this one will learn of it
            if time.monotonic() - began_s >= WELL_S:
                pause_s = FIRST_PAUSE_S
            elif code == _REFUSED:
                pause_s = MOST_PAUSE_S
            self._rest(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _rest(self, seconds: float | None) -> None:
        """Until there is something to do, at most so long."""
        until_s = None if seconds is None else time.monotonic() + seconds
        while not self._end and (until_s is not None or not self._busy):
            left_s = 60.0 if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                return
            select.select([self._wake_r], [], [], min(left_s, 60.0))
            self._slept()

    def _one_life(self) -> int | None:
        """From its start to its end; its exit code, None where it could not be started."""
        try:
            talk = self._begin()
        except OSError as error:
            self._say(f"the profiler cannot be started: {error.strerror}")
            return None
        self._pid = talk.process.pid
        try:
            hung = self._attend(talk)
        finally:
            self._pid = None
            with suppress(ProcessLookupError):
                talk.process.send_signal(signal.SIGKILL)
            code = talk.process.wait()
            for pipe in (talk.process.stdin, talk.process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        if not self._end:
            self._say(
                "the profiler did not answer and was stopped" if hung else _how_ended(code, talk.errors)
            )
        return code

    def _begin(self) -> _Talk:
        with open(self._errors, "wb") as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        now_s = time.monotonic()
        talk = _Talk(process, self._errors, now_s, now_s + SILENT_S)
        talk.out += msgspec.json.encode(self._orders) + b"\n"
        return talk

    def _attend(self, talk: _Talk) -> bool:
        """Talk to the process until it has closed its output; True where it hung."""
        stdin, stdout = talk.process.stdin, talk.process.stdout
        assert stdin is not None
        assert stdout is not None
        while not self._end:
            if not talk.out:
                self._tell(talk)
            writes = [stdin.fileno()] if talk.out else []
            ready, free, _ = select.select([stdout.fileno(), self._wake_r], writes, [], _POLL_S)
            if self._wake_r in ready:
                self._slept()
            if free and not _written(stdin.fileno(), talk.out):
                talk.out.clear()
                talk.told = self._live  # it is ending: what it still says is heard
            if stdout.fileno() in ready:
                data = _read(stdout.fileno())
                if data == b"":
                    return False
                self._hear(talk, data or b"")
            if time.monotonic() > talk.heard_s:
                return True
        return False

    def _tell(self, talk: _Talk) -> None:
        """What it has to know: the attempts that run now, and one profile to keep."""
        live = self._live
        if live != talk.told:
            talk.told = live
            talk.heard_s = time.monotonic() + SILENT_S if live else float("inf")  # without work it is silent
            talk.out += msgspec.json.encode({"live": live}) + b"\n"
        with self._lock:
            row = self._given.first()
        if row is not None:
            talk.out += msgspec.json.encode({"row": row}) + b"\n"

    def _hear(self, talk: _Talk, data: bytes) -> None:
        *lines, rest = (talk.rest + data).split(b"\n")
        talk.rest = bytearray(rest[:_LINE_MOST])
        for line in lines:
            try:
                kind, body = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
                if kind == "next":
                    talk.heard_s = time.monotonic() + SILENT_S + msgspec.json.decode(body, type=float)
                elif kind == _ROW:
                    with self._lock:
                        self._rows.add([msgspec.json.decode(body, type=ProfileRow)])
                elif kind in _KINDS:
                    self._add(ev.decode(kind, bytes(body)))
            except (msgspec.DecodeError, StoreDamaged) as error:
                self._say(f"the profiler's output cannot be read: {error}")

    def _add(self, event: ev.Event) -> None:
        with self._lock:
            self._found.append(event)
            del self._found[:-_KEPT]
        if isinstance(event, ev.ProfilerSet):
            self._why_not = event.why_not

    def _say(self, why_not: str) -> None:
        if why_not != self._why_not:
            self._add(ev.ProfilerSet(why_not))

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_w, b".")

    def _slept(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_r, 4096)


class ProfileQueue:
    """Profiles in the order in which they came, at most :data:`MOST_BYTES` of them."""

    def __init__(self) -> None:
        self._rows: deque[ProfileRow] = deque()
        self._n_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, rows: Iterable[ProfileRow]) -> None:
        for row in rows:
            self._rows.append(row)
            self._n_bytes += len(row.body)
        while self._n_bytes > MOST_BYTES:
            self.first()

    def first(self) -> ProfileRow | None:
        """The oldest, which is there no more."""
        if not self._rows:
            return None
        row = self._rows.popleft()
        self._n_bytes -= len(row.body)
        return row

    def take(self) -> list[ProfileRow]:
        """All of them."""
        rows = list(self._rows)
        self._rows.clear()
        self._n_bytes = 0
        return rows


def _written(fd: int, out: bytearray) -> bool:
    """Write as much as the pipe takes; False if it has no reader any more."""
    try:
        del out[: os.write(fd, out)]
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def _read(fd: int) -> bytes | None:
    """What is there; nothing at the end, None where there is nothing yet."""
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return None


def _how_ended(code: int, errors: Path) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    try:
        lines = errors.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return f"the profiler {how}" + (f": {lines[-1][:500]}" if lines else "")
