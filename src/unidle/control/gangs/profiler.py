"""The controller's part of continuous mode: it keeps a low-priority process running that profiles the ranks.

A thread communicates with that process. So a process that hangs, is killed or cannot be started does not delay the
loop. Each turn of the loop takes its findings as events.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.fleet.policies import ProfilePolicy
from unidle.view.state import View

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

Live = tuple[tuple[str, int, int], ...]  # job, attempt, ranks


@dataclass(frozen=True, slots=True)
class ProfilerOrders:
    """As ``unidle.scope.continuous.worker.WorkerConfig``: what the process receives at its start. Holds the store's password."""

    store: str
    run_root: str
    token: int
    offset_ns: int
    policy: ProfilePolicy


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


class Profiler:
    """Keeps one profiler process going while jobs run. What it writes to its standard error is in ``errors``.

    ``command``: what is run, where that is not :data:`COMMAND`.
    """

    def __init__(self, orders: ProfilerOrders, errors: Path, *, command: Sequence[str] = ()) -> None:
        self._orders, self._errors = orders, errors
        self._command = tuple(command or COMMAND)
        self._lock = threading.Lock()
        self._live: Live = ()
        self._found: list[ev.Event] = []
        self._why_not: str | None = None  # as it was last said
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._end = False
        self._pid: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process that profiles now; None without one."""
        return self._pid

    def take(self, view: View) -> Iterator[ev.Event]:
        """The findings since the last call. Also sends the process the list of attempts that run now."""
        live: Live = tuple(
            (job, attempt.number, len(attempt.ranks))
            for job in sorted(view.live)
            if (attempt := view.jobs.open[job].live) is not None and attempt.all_spawned
        )
        with self._lock:
            changed = live != self._live
            self._live = live
            found, self._found = self._found, []
        if live and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unidle-profiler", daemon=True)
            self._thread.start()
        if changed:
            self._wake()
        for event in found:
            if not isinstance(event, ev.ProfilerSet) or event.why_not != view.profiler:
                yield event

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

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._end:
            if not self._live:
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
        while not self._end and (until_s is not None or not self._live):
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
            live = self._live
            if live != talk.told and not talk.out:
                talk.told = live
                talk.out += msgspec.json.encode({"live": live}) + b"\n"
            writes = [stdin.fileno()] if talk.out else []
            ready, free, _ = select.select([stdout.fileno(), self._wake_r], writes, [], _POLL_S)
            if self._wake_r in ready:
                self._slept()
            if free and not _written(stdin.fileno(), talk.out):
                talk.out.clear()
                talk.told = live  # it is ending: what it still says is heard
            if stdout.fileno() in ready:
                data = _read(stdout.fileno())
                if data == b"":
                    return False
                self._hear(talk, data or b"")
            if time.monotonic() > talk.heard_s:
                return True
        return False

    def _hear(self, talk: _Talk, data: bytes) -> None:
        *lines, rest = (talk.rest + data).split(b"\n")
        talk.rest = bytearray(rest[:_LINE_MOST])
        for line in lines:
            try:
                kind, body = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
                if kind == "next":
                    talk.heard_s = time.monotonic() + SILENT_S + msgspec.json.decode(body, type=float)
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
