"""What a user sees while a job runs: one moving line on a terminal, else plain lines now and then."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

from unidle.cli.common import age, printable, warn
from unidle.events import types as ev
from unidle.guard.failure import how_ended
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.view.state import View
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.cli.job_output import JobOutput

Progress = Literal["auto", "live", "plain", "off"]

_PLAIN_EVERY_S = 5.0
_PLAIN_MOST_S = 300.0
_LIVE_EVERY_S = 0.2
_BAR_STAYS_S = 3.0
_WAIT_S = 0.5
_SAVED_EVERY_S = 30.0  # a line about a checkpoint, at most; the others are in the line of where the job is


class Live:
    """Writes to standard error. ``auto`` is live on a terminal, else plain.

    What the job prints comes from another thread (``output``, where it is shown). On a terminal it moves with the
    line of this class: lines above it, and a progress bar of the job in its place.
    """

    def __init__(self, mode: Progress, *, with_output: bool = False) -> None:
        if mode == "auto":
            mode = "live" if _can_be_live(with_output) else "plain"
        self._mode = mode
        self.output: JobOutput | None = None
        self._lock = threading.RLock()
        self._waiting: list[str] = []  # hints that could not be written when they came
        self._moving: TextIO = sys.stderr  # where the moving line is
        self._line = ""  # what the moving line shows
        self._bar, self._bar_s = "", 0.0  # the job's unfinished line, and when it last changed
        self._saved_s: dict[tuple[str, int], float] = {}  # when a checkpoint of an attempt was last printed
        self._started = time.monotonic()
        self._last = self._started if mode == "plain" else 0.0

    def tell(self, view: View, event: ev.Event) -> None:
        """Print what an event means, where it means something to a person, after what the job printed before it."""
        text = self._words(view, event) if self._mode != "off" else ""
        if self.output is not None and (text or isinstance(event, (ev.AttemptPlaced, ev.AttemptEnded))):
            self.output.heard(event)
        if text:
            self.hint(text)

    def _words(self, view: View, event: ev.Event) -> str:
        if not isinstance(event, ev.RankSaw):
            return _words(event)
        now, attempt = time.monotonic(), (event.job, event.attempt)
        with_saves = now - self._saved_s.get(attempt, -_SAVED_EVERY_S) >= _SAVED_EVERY_S
        if with_saves and any(mark.k == "saved" for mark in event.marks):
            self._saved_s[attempt] = now
        return _rank_words(view, event, with_saves=with_saves)

    def refresh(self, job: JobView, now_ns: int) -> None:
        """Show where the job is, often on a terminal, in plain mode less and less often."""
        now = time.monotonic()
        plain_s = min(max(_PLAIN_EVERY_S, (now - self._started) / 20), _PLAIN_MOST_S)
        every = {"live": _LIVE_EVERY_S, "plain": plain_s}.get(self._mode)
        if every is None or now - self._last < every:
            return
        self._last = now
        text = printable(_status(job, now_ns))
        if self._mode == "plain":
            self._write(f"{now - self._started:7.1f} s  {text}\n")
        elif self._lock.acquire(blocking=False):
            with self._held():
                self._draw(self._bar if now - self._bar_s < _BAR_STAYS_S and self._bar else text)

    def hint(self, text: str) -> None:
        """A line of unidle's own, with the time since the start."""
        if self._mode == "off":
            return
        self._waiting.append(f"{time.monotonic() - self._started:7.1f} s  {printable(text)}\n")
        if self._lock.acquire(timeout=_WAIT_S):
            with self._held():
                self._clear()
                self._write_waiting()

    def warning(self, text: str) -> None:
        """A line of unidle's own that is printed in every mode."""
        if self._mode == "off":
            warn(text)
        else:
            self.hint(text)

    def lines(self, to: TextIO, text: str, bar: str) -> None:
        """Whole lines of the job on a terminal, and ``bar``, the line that is not finished."""
        with self._lock:
            status = self._line if self._line != self._bar else ""
            self._clear()
            self._moving = sys.stderr if self._mode == "live" else to
            if text:
                to.write(text)
                to.flush()
            self._write_waiting()
            if bar != self._bar:
                self._bar, self._bar_s = bar, time.monotonic()
            self._draw(bar or status)

    def done(self) -> None:
        """Leave a clean line behind: what follows are lines only."""
        if not self._lock.acquire(timeout=_WAIT_S):
            return
        with self._held():
            self._clear()
            self._write_waiting()
            self._mode = "plain" if self._mode == "live" else self._mode

    @contextmanager
    def _held(self) -> Iterator[None]:
        """While the lock, already taken, is held."""
        try:
            yield
        finally:
            self._lock.release()

    def _draw(self, text: str) -> None:
        if text == self._line:
            return
        self._clear()
        if text and (self._mode == "live" or text == self._bar):
            self._line = text
            self._write(_fitting(text, shutil.get_terminal_size().columns - 1), self._moving)

    def _clear(self) -> None:
        if self._line:
            self._write("\r\x1b[K", self._moving)
            self._line = ""

    def _write_waiting(self) -> None:
        while self._waiting:
            self._write(self._waiting.pop(0))

    def _write(self, text: str, to: TextIO | None = None) -> None:
        to = to or sys.stderr
        try:
            to.write(text)
            to.flush()
        except OSError:
            self._mode = "off"


def _can_be_live(with_output: bool) -> bool:
    """Whether a line that is updated in place is suitable: standard error is a terminal, and no pipe leads other
    lines to it.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        return not (with_output and stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode))
    except (OSError, ValueError):
        return True


def _fitting(text: str, width: int) -> str:
    """``text`` in at most so many columns of a terminal."""
    if text.isascii():
        return text[:width]
    from rich.cells import cell_len, set_cell_size  # slow to import, and few need it

    return text if cell_len(text) <= width else set_cell_size(text, width)


def _status(job: JobView, now_ns: int) -> str:
    parts = [job.id, job.state]
    attempt = job.live
    if attempt is None:
        if job.verdict is not None:
            parts.append(job.verdict.text)
        elif job.not_before_ns > now_ns:
            parts.append(f"starts again in {age(job.not_before_ns - now_ns)}")
        return " | ".join(parts)
    up = sum(1 for r in attempt.ranks if r.spawn_ns is not None and not r.ended)
    parts.append(f"attempt {attempt.number}")
    parts.append(f"{up} of {counted(len(attempt.ranks), 'rank')} up")
    step = attempt.last_step()
    if step is not None:
        overdue_ns = attempt.overdue_ns(now_ns)
        parts.append(f"step {step}{'' if overdue_ns else _pace(job)}")
        if overdue_ns and attempt.notice is None:
            parts.append(f"no step for {age(overdue_ns)}")
    saves = [saved for rank in attempt.ranks if rank.saves and (saved := rank.saves[-1])[1] is not None]
    if saves:
        parts.append(f"checkpoint {max(saves)[1]}")
    if attempt.notice is not None:
        parts.append(f"no activity for {age(now_ns - attempt.notice.since_ns)}")
    parts.append(age(now_ns - attempt.placed_ns))
    return " | ".join(parts)


def _pace(job: JobView) -> str:
    attempt = job.attempts[-1]
    lead = next(r for r in attempt.ranks if r.step_n)
    steps = lead.step_n[-20:]
    if len(steps) < 2 or lead.step_ns[-1] <= lead.step_ns[-len(steps)]:
        return ""
    pace = (steps[-1] - steps[0]) / ((lead.step_ns[-1] - lead.step_ns[-len(steps)]) / 1e9)
    return f" ({pace:.1f}/s)"


def _words(event: ev.Event) -> str:
    if isinstance(event, ev.JobSubmitted):
        spec = event.spec
        has = counted(spec.devices_per_rank, "device") if spec.needs_devices else "no device"
        each = " each" if spec.ranks > 1 and spec.needs_devices else ""
        return f"{event.job}: submitted, {counted(spec.ranks, 'rank')} with {has}{each}"
    if isinstance(event, ev.JobJudged):
        return f"{event.job}: waits, {event.because.text}"
    if isinstance(event, ev.AttemptPlaced):
        return f"{event.job}: attempt {event.attempt} placed: {event.because.text}"
    if isinstance(event, ev.StopAsked):
        return f"{event.job}: stopping the gang: {event.because.text}"
    if isinstance(event, ev.AttemptEnded):
        return f"{event.job}: attempt {event.attempt} {event.outcome}"
    if isinstance(
        event, (ev.RetryPlanned, ev.Requeued, ev.IdleTold, ev.IdleOver, ev.CheckpointBad, ev.StacksTaken)
    ):
        return f"{event.job}: {event.because.text}"
    if isinstance(event, ev.JobEnded):
        return f"{event.job}: {event.state}: {event.because.text}"
    if isinstance(event, ev.FaultSeen):
        return f"{event.node}: fault: {event.because.text}"
    if isinstance(event, ev.ProfilerSet):
        return event.why_not or "running jobs are profiled (`unidle profile JOB --since 1h` shows them)"
    return ""


def _rank_words(view: View, event: ev.RankSaw, *, with_saves: bool) -> str:
    attempt = view.jobs[event.job].attempts[event.attempt - 1]
    rank = attempt.ranks[event.rank]
    texts = []
    for mark in event.marks:
        if mark.k == "saved" and with_saves:
            texts.append("checkpoint saved" + (f" at step {mark.n}" if mark.n is not None else ""))
        elif mark.k == "restored" and event.rank == 0 and mark.n is not None:
            texts.append(f"resumed from the checkpoint of step {mark.n}")
        elif mark.k in ("exit", "lost") and rank.failed and not _was_stopped(attempt, rank):
            texts.append(f"rank {event.rank} {how_ended(rank)}")
        elif mark.k == "note" and mark.text:
            texts.append(f"rank {event.rank}: {mark.text}")
    return f"{event.job}: {'; '.join(texts)}" if texts else ""


def _was_stopped(attempt: AttemptView, rank: RankView) -> bool:
    """Whether a rank ended by the signal that stops its gang, or was not started any more; the stop has a line already."""
    if attempt.stop is None:
        return False
    return rank.spawn_ns is None if rank.lost else rank.code in (-signal.SIGTERM, -signal.SIGKILL)
