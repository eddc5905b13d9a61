"""From the view and the output of ranks to the story of a job: command, environment, error, speed and loss."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from unidle.guard.failure import failure_of
from unidle.guard.failure_words import meaning_in_words, others_in_words
from unidle.page.frame import visible
from unidle.private import plain_file
from unidle.report.filled import fill_story
from unidle.report.model import Curve, Hang, JobStory, Problem
from unidle.report.rank_output import NoOutput, RankOutput
from unidle.report.secrets import Mask
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.words import counted, duration, plural

STORIES_SHOWN: Final = 20
TAIL_LINES: Final = 12
LINE_CHARS: Final = 400
_TAIL_BYTES: Final = 32 << 10
_POINTS: Final = 160
_STEPS_PER_POINT: Final = 3
_VARIABLES: Final = 200
_VALUE_CHARS: Final = 1000
_APART_SHOWN: Final = 4
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[@-_])?"
)


def story_of(
    job: JobView, output: RankOutput, now_ns: int, store: str = "", use: Sequence[str] = ()
) -> JobStory:
    """One job. ``output`` has what its ranks printed.

    ``store``: its address, for commands that are shown. ``use``: how well its steps used their devices.
    """
    spec = job.spec
    mask = Mask(spec.env, spec.command)
    env = [(name, mask.value(name, value)[:_VALUE_CHARS]) for name, value in sorted(spec.env.items())]
    return JobStory(
        job=job.id,
        start_ns=job.attempts[0].placed_ns if job.attempts else job.submitted_ns,
        end_ns=job.ended_ns if job.ended_ns is not None else now_ns,
        command=shlex.join(mask.command(spec.command)),
        facts=tuple(
            (name, mask.text(text))
            for name, text in (*_facts(job), ("use of devices", "; ".join(use)))
            if text
        ),
        env=tuple(env[:_VARIABLES]),
        problem=problem_of(job, output, mask, store),
        hang=_hang(job, mask),
        speed=tuple(curve for a in job.attempts if (curve := _speed(a)) is not None),
        loss=tuple(curve for a in job.attempts if (curve := _loss(a)) is not None),
        fill=fill_story(output.fills(job)),
    )


# -- what went wrong ---------------------------------------------------------------------------------


def problem_of(job: JobView, output: RankOutput, mask: Mask, store: str = "") -> Problem | None:
    """Why the job's last failed attempt failed; None where none did.

    The text comes from the event log; if that has no output of the rank at fault, from the end of what it printed.
    """
    failed = [attempt for attempt in job.attempts if attempt.outcome == "failed"]
    if not failed:
        if job.state != "failed" or job.because is None:
            return None
        return Problem(0, mask.text(job.because.text), note="it never ran")
    attempt = failed[-1]
    failure = failure_of(job, attempt)
    headline = mask.text(attempt.why.text if attempt.why is not None else "it failed")
    rank = failure.rank if failure is not None else attempt.stop.culprit if attempt.stop is not None else None
    lines, note = failure.lines if failure is not None else (), ""
    if not lines and rank is not None:
        lines, note = output_tail(output, job, attempt.number, rank)
    if failure is None:
        return Problem(attempt.number, headline, rank, tuple(map(mask.text, lines)), note)
    said = (
        note,
        meaning_in_words(failure),
        others_in_words(failure.because_of, failure.same, failure.unsure),
        _end(job, attempt),
    )
    return Problem(
        attempt.number, mask.text(failure.text) or headline, rank, tuple(map(mask.text, lines)),
        mask.text("; ".join(filter(None, said))), mask.text(failure.help), failure.command(store or None),
    )  # fmt: skip


def _end(job: JobView, attempt: AttemptView) -> str:
    """Why no other attempt followed; empty if the job has no such reason."""
    why = attempt.why.text if attempt.why is not None else ""
    end = job.because.text if job.because is not None and job.state == "failed" else ""
    return end.removeprefix(f"{why}; ") if why and end.startswith(f"{why}; ") else ""


def output_tail(output: RankOutput, job: JobView, attempt: int, rank: int) -> tuple[tuple[str, ...], str]:
    """The last lines that a rank printed, safe to show; or why there are none."""
    try:
        data, size = output.end(job, attempt, rank, _TAIL_BYTES)
    except NoOutput as error:
        return (), str(error)
    raw = data.decode("utf-8", "replace").split("\n")
    if size > len(data) and len(raw) > 1:
        raw = raw[1:]  # it begins in the middle of a line
    lines = [line for line in map(_shown, raw) if line.strip()]
    return tuple(lines[-TAIL_LINES:]), "" if lines else f"rank {rank} printed nothing"


def _shown(line: str) -> str:
    """A line as a terminal would leave it: without escape sequences, and the last picture of a progress bar."""
    plain = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]
    return visible(plain.expandtabs(4), LINE_CHARS)


def _hang(job: JobView, mask: Mask) -> Hang | None:
    attempt = next((a for a in reversed(job.attempts) if a.stacks is not None), None)
    if attempt is None or attempt.stacks is None:
        return None
    taken = attempt.stacks
    frames = [
        (rank, tuple(mask.text(frame) for frame in stack.frames))
        for stack in taken.stacks
        for rank in stack.ranks
        if rank in taken.odd and stack.frames
    ]
    return Hang(attempt.number, mask.text(taken.because.text), tuple(sorted(frames)[:_APART_SHOWN]))


# -- what was run ------------------------------------------------------------------------------------


def _facts(job: JobView) -> Iterator[tuple[str, str]]:
    spec = job.spec
    each = f", {counted(spec.devices_per_rank, 'device')} each" if spec.devices_per_rank != 1 else ""
    yield "size", counted(spec.ranks, "rank") + each
    yield "directory", spec.workdir
    yield "ran on", _places(job)
    yield "submitted", f"by {spec.user or 'unknown'} to queue {spec.queue}"
    restart = spec.restart
    used = f", {job.retries} used" if job.retries else ""
    yield "restarts", f"at most {restart.max}{used}" if restart.max else ""
    yield "limits", ", ".join(_limits(job))
    yield "checkpoints", spec.checkpoint_path or ""
    yield "step pattern", spec.progress_pattern or ""
    yield "revision", _revision(Path(spec.workdir))
    yield "unidle", _version()


def _places(job: JobView) -> str:
    if not job.attempts:
        return "nothing yet"
    nodes = Counter(place.node for place in job.attempts[-1].places)
    texts = [f"{node} ({counted(count, 'rank')})" for node, count in nodes.items()]
    more = len(texts) - 8
    return ", ".join(texts[:8]) + (f" and {more} more {plural(more, 'node')}" if more > 0 else "")


def _limits(job: JobView) -> Iterator[str]:
    spec = job.spec
    if spec.limits.memory_bytes is not None:
        yield f"memory {spec.limits.memory_bytes / 2**20:,.0f} MiB a rank"
    if spec.limits.cpus is not None:
        yield f"{spec.limits.cpus:g} CPUs a rank"
    if spec.limits.pids is not None:
        yield f"{spec.limits.pids} processes a rank"
    if spec.timeout_s is not None:
        yield f"timeout {duration(int(spec.timeout_s * 1e9))}"


def _revision(workdir: Path) -> str:
    """The git commit that the directory is at now, read without running git."""
    for place in (workdir, *workdir.parents):
        head = _text(place / ".git" / "HEAD")
        if not head:
            continue
        name = head.removeprefix("ref: ")
        if name != head and (not name.startswith("refs/") or ".." in name):
            return ""  # it leads elsewhere
        commit = head if name == head else _text(place / ".git" / name) or _packed(place / ".git", name)
        branch = f" ({name.removeprefix('refs/heads/')})" if name != head else ""
        return (
            f"git {commit[:12]}{branch} when this page was made"
            if re.fullmatch("[0-9a-f]{40,64}", commit)
            else ""
        )
    return ""


def _packed(git: Path, name: str) -> str:
    lines = _text(git / "packed-refs", 4 << 20).splitlines()
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")


def _text(path: Path, most: int = 4096) -> str:
    try:
        with plain_file(path) as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""


def _version() -> str:
    try:
        return version("unidle")
    except PackageNotFoundError:
        return ""


# -- figures over time -------------------------------------------------------------------------------


def _speed(attempt: AttemptView) -> Curve | None:
    """Steps per second, in equal parts of the time, of the rank that reported the most steps."""
    lead = max(attempt.ranks, key=lambda rank: len(rank.step_ns), default=None)
    if lead is None or len(lead.step_ns) < 3 or lead.step_ns[-1] <= lead.step_ns[0]:
        return None
    times, numbers = lead.step_ns, lead.step_n
    usual_ns = median(b - a for a, b in pairwise(times))
    span_ns = times[-1] - times[0]
    parts = max(1, min(_POINTS, int(span_ns / max(_STEPS_PER_POINT * usual_ns, 1))))
    edges = [times[0] + span_ns * k // parts for k in range(parts + 1)]
    done = _interpolated(times, numbers, edges)
    points = [
        ((a + b) // 2, (m - n) * 1e9 / (b - a))
        for (a, b), (n, m) in zip(pairwise(edges), pairwise(done), strict=True)
        if b > a
    ]
    ends = [(times[0], points[0][1]), *points, (times[-1], points[-1][1])]
    return Curve(attempt.number, tuple(ends))


def _interpolated(times: Sequence[int], numbers: Sequence[int], at: Sequence[int]) -> list[float]:
    """The number at each moment of ``at`` (rising, within ``times``), on straight lines between what is known."""
    result, k = [], 0
    for moment in at:
        while k + 2 < len(times) and times[k + 1] < moment:
            k += 1
        gap_ns = times[k + 1] - times[k]
        share = min((moment - times[k]) / gap_ns, 1.0) if gap_ns else 1.0
        result.append(numbers[k] + share * (numbers[k + 1] - numbers[k]))
    return result


def _loss(attempt: AttemptView) -> Curve | None:
    lead: RankView | None = max(attempt.ranks, key=lambda rank: len(rank.losses), default=None)
    if lead is None or not lead.losses:
        return None
    stride = -(-len(lead.losses) // (2 * _POINTS))
    kept = lead.losses[::stride]
    if kept[-1] is not lead.losses[-1]:
        kept = [*kept, lead.losses[-1]]
    return Curve(attempt.number, tuple((t, value) for t, _, value in kept))
