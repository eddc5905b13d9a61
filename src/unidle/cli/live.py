"""What a user sees while a job runs: one moving line on a terminal, plain lines where asked, else nothing."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Literal

from unidle.cli.common import age, printable
from unidle.events import types as ev
from unidle.guard.lifecycle import how_ended
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.words import counted

Progress = Literal["auto", "live", "plain", "off"]

_PLAIN_EVERY_S = 5.0
_LIVE_EVERY_S = 0.2


class Live:
    """Writes to standard error. ``auto`` is live on a terminal and off in a pipe."""

    def __init__(self, mode: Progress) -> None:
        if mode == "auto":
            mode = "live" if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else "off"
        self._mode = mode
        self._line = ""
        self._last = 0.0
        self._started = time.monotonic()

    def tell(self, view: View, event: ev.Event) -> None:
        """Print what an event means, where it means something to a person."""
        if self._mode == "off":
            return
        text = _words(view, event)
        if text:
            self.hint(text)

    def refresh(self, job: JobView, now_ns: int) -> None:
        """Show where the job is, often on a terminal, now and then in plain mode."""
        every = {"live": _LIVE_EVERY_S, "plain": _PLAIN_EVERY_S}.get(self._mode)
        if every is None or time.monotonic() - self._last < every:
            return
        self._last = time.monotonic()
        text = printable(_status(job, now_ns))
        if self._mode == "plain":
            self._write(f"{self._last - self._started:7.1f} s  {text}\n")
        elif text != self._line:
            width = shutil.get_terminal_size().columns
            self._clear()
            self._line = text
            self._write(text[: width - 1])

    def hint(self, text: str) -> None:
        """Tell what the user can do now."""
        if self._mode != "off":
            self._clear()
            self._write(f"{time.monotonic() - self._started:7.1f} s  {printable(text)}\n")

    def done(self) -> None:
        """Leave a clean line behind."""
        self._clear()
        self._mode = "off"

    def _clear(self) -> None:
        if self._line:
            self._write("\r\x1b[K")
            self._line = ""

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._mode = "off"


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
        parts.append(f"step {step}{_pace(job)}")
    if attempt.notice is not None:
        parts.append(f"no sign of work for {age(now_ns - attempt.notice.since_ns)}")
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


def _words(view: View, event: ev.Event) -> str:
    if isinstance(event, ev.JobSubmitted):
        spec = event.spec
        return f"{event.job}: submitted, {counted(spec.ranks, 'rank')} with {counted(spec.devices_per_rank, 'device')} each"
    if isinstance(event, ev.JobJudged):
        return f"{event.job}: waits, {event.because.text}"
    if isinstance(event, ev.AttemptPlaced):
        return f"{event.job}: attempt {event.attempt} placed: {event.because.text}"
    if isinstance(event, ev.StopAsked):
        return f"{event.job}: stopping the gang: {event.because.text}"
    if isinstance(event, ev.AttemptEnded):
        return f"{event.job}: attempt {event.attempt} {event.outcome}"
    if isinstance(event, (ev.RetryPlanned, ev.Requeued, ev.IdleTold, ev.IdleOver, ev.CheckpointBad)):
        return f"{event.job}: {event.because.text}"
    if isinstance(event, ev.JobEnded):
        return f"{event.job}: {event.state}: {event.because.text}"
    if isinstance(event, ev.FaultSeen):
        return f"{event.node}: fault: {event.because.text}"
    if isinstance(event, ev.ProfilerSet):
        return event.why_not or "running jobs are looked at (`unidle profile JOB --since 1h`)"
    if isinstance(event, ev.RankSaw):
        return _rank_words(view, event)
    return ""


def _rank_words(view: View, event: ev.RankSaw) -> str:
    rank = view.jobs[event.job].attempts[event.attempt - 1].ranks[event.rank]
    texts = []
    for mark in event.marks:
        if mark.k == "saved":
            texts.append("checkpoint saved" + (f" at step {mark.n}" if mark.n is not None else ""))
        elif mark.k in ("exit", "lost") and rank.failed:
            texts.append(f"rank {event.rank} {how_ended(rank)}")
        elif mark.k == "note" and mark.text:
            texts.append(f"rank {event.rank}: {mark.text}")
    return f"{event.job}: {'; '.join(texts)}" if texts else ""
