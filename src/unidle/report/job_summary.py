"""The end of ``unidle run`` in a few lines: how the job ended, its steps, and where the time of its own devices went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from unidle.control.queries.describe import how_to_measure
from unidle.ledger.taxonomy import GROUP_COLOURS, GROUP_OF
from unidle.page.frame import visible
from unidle.report.palette import ansi_256
from unidle.report.text import device_time, number, percent
from unidle.report.totals import WINS
from unidle.words import counted, duration

if TYPE_CHECKING:
    from unidle.ledger.answers import LedgerSummary
    from unidle.view.jobs import AttemptView, JobView
    from unidle.view.state import View

BARS: Final = 3
_LABEL: Final = 21
_WAIT_SHOWN_NS: Final = 1_000_000_000
_ADVISED_PPM: Final = 50_000  # of the job's device time
_START_ADVISED_NS: Final = 60_000_000_000

_TO_CHANGE: Final[dict[str, str]] = {
    "data_stall": "Steps waited for input: use more DataLoader workers (num_workers), or move the data closer.",
    "checkpoint": "Steps waited for checkpoints: save less often, or in the background (unidle.rank.checkpoint).",
    "evaluation": "Evaluate less often, or on part of the data.",
    "compile": "Keep the compiler's cache over restarts (TORCHINDUCTOR_CACHE_DIR).",
    "exposed_local": "Steps waited for communication: larger buckets, or more work for each all-reduce.",
    "exposed_wan": "Steps waited for the link between sites: keep the gang inside one site (topology).",
    "bubble": "Use more microbatches, or fewer pipeline stages.",
    "recompute": "Keep more activations where memory allows.",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Device time of one cause; ``group`` is empty for several that are summed."""

    label: str
    group: str
    ns: int


def job_summary(
    view: View, job: JobView, summary: LedgerSummary, width: int = 80, colour: bool = False
) -> str:
    """At most five lines, then what the user can change, where there is something. ``summary`` is of the job's rows."""
    lines = [_outcome(job), _steps(view, job), *_bars(view, job, summary, width, colour)]
    return "\n".join([visible_line(line) for line in lines] + list(advice(view, job, summary)))


def visible_line(line: str) -> str:
    """Without controls, but for the colours of a bar."""
    return line if "\x1b" in line else visible(line)


def _outcome(job: JobView) -> str:
    because = f": {job.because.text}" if job.because else ""
    ended_ns = job.submitted_ns if job.ended_ns is None else job.ended_ns
    took = duration(ended_ns - job.submitted_ns)
    waited_ns = (job.attempts[0].placed_ns if job.attempts else ended_ns) - job.submitted_ns
    waited = f" ({duration(waited_ns)} of it waiting)" if waited_ns >= _WAIT_SHOWN_NS else ""
    return f"{job.id} {job.state} after {counted(len(job.attempts), 'attempt')} in {took}{waited}{because}"


def _steps(view: View, job: JobView) -> str:
    first = [step for attempt in job.attempts if (step := attempt.first_step()) is not None]
    if not first:
        seen = "steps seen from outside" if _was_watched(job) else "no steps were seen"
        return f"{seen}, {_devices(view, job)}"
    pace = _pace(job)
    rate = f" at {pace:.3g} steps/s" if pace is not None else ""
    low, high = min(first), job.steps()
    done = f"steps {number(low)} to {number(high)}" if low < high else f"step {number(high)}"
    text = f"{done}{rate}, {_devices(view, job)}"
    lost = _lost_steps(job)
    again = sum(lost[:-1])
    if again:
        text += f"; {counted(again, 'step')} done again after a restart"
    if lost[-1]:
        text += f"{',' if again else ';'} {counted(lost[-1], 'step')} not saved"
    return text


def _was_watched(job: JobView) -> bool:
    return any(attempt.watched_ns is not None for attempt in job.attempts)


def _devices(view: View, job: JobView) -> str:
    ranks = len(job.attempts[-1].places) if job.attempts else job.spec.ranks
    devices = job.devices_of(job.attempts[-1]) if job.attempts else job.spec.devices
    if not devices:
        return f"{counted(ranks, 'rank')} with no device"
    kind = {"GPU": "GPU", "device": "CPU device"}[_unit(view, job)]
    return f"{counted(ranks, 'rank')} on {counted(devices, kind)}"


def _unit(view: View, job: JobView) -> str:
    from unidle.fleet import device_of

    held = {device_of(s) for attempt in job.attempts for place in attempt.places for s in place.slices}
    kinds = {device.kind for device in view.fleet.devices() if device.id in held}
    return "GPU" if kinds == {"gpu"} else "device"


def _pace(job: JobView) -> float | None:
    """Steps per second from the first to the last step of each attempt, restarts left out."""
    steps, ns = 0, 0
    for attempt in job.attempts:
        lead = max((r for r in attempt.ranks if r.step_n), key=lambda r: r.step_n[-1], default=None)
        if lead is not None and lead.step_ns[-1] > lead.step_ns[0]:
            steps += lead.step_n[-1] - lead.step_n[0]
            ns += lead.step_ns[-1] - lead.step_ns[0]
    return steps / (ns / 1e9) if steps > 0 else None


def steps_done_again(job: JobView) -> int:
    """Steps that were done and then lost by a failure, counted from the log's attempts."""
    return sum(_lost_steps(job))


def _lost_steps(job: JobView) -> list[int]:
    """Steps lost in each attempt: those after its last durable checkpoint, unless it succeeded."""
    from unidle.view.accounts import durable_points

    lost = [0] * len(job.attempts)
    for k, (attempt, durable) in enumerate(zip(job.attempts, durable_points(job), strict=True)):
        last, first = attempt.last_step(), attempt.first_step()
        if last is None or first is None or attempt.outcome in (None, "succeeded"):
            continue
        lost[k] = last - max(durable.step if durable.step is not None else first - 1, first - 1)
    return lost


# -- where the time of its devices went


def parts_of(job: JobView, summary: LedgerSummary) -> list[Part]:
    """The job's device time: what was of use first, then the largest others; all beyond ``BARS`` as one."""
    totals = _totals(summary)
    by_size = sorted(totals.items(), key=lambda item: (item[0] not in WINS, -item[1], item[0]))
    parts = [Part(_label(job, leaf), GROUP_OF[leaf], ns) for leaf, ns in by_size if ns]
    if len(parts) <= BARS:
        return parts
    rest = parts[BARS - 1 :]
    return [*parts[: BARS - 1], Part(counted(len(rest), "other"), "", sum(part.ns for part in rest))]


def _totals(summary: LedgerSummary) -> dict[str, int]:
    """Of each leaf, however it is known."""
    totals: dict[str, int] = {}
    for total in summary.leaves:
        totals[total.leaf] = totals.get(total.leaf, 0) + total.ns
    return totals


def _label(job: JobView, leaf: str) -> str:
    if leaf == "useful" and not job.steps() and not _was_watched(job):
        return "ran, no steps seen"
    group = GROUP_OF[leaf]
    return leaf if group in (leaf, "step") else f"{group} {leaf}"


def _bars(view: View, job: JobView, summary: LedgerSummary, width: int, colour: bool) -> Iterator[str]:
    parts = parts_of(job, summary)
    whole = sum(part.ns for part in parts)
    unit = _unit(view, job)
    numbers = [f"{percent(part.ns, whole):>7}  {device_time(part.ns, unit)}" for part in parts]
    room = max(10, width - _LABEL - 2 - max(map(len, numbers), default=0))
    for part, text in zip(parts, numbers, strict=True):
        bar = "█" * max(1, round(part.ns * room / whole))
        blanks = " " * (room - len(bar))
        if colour and part.group in GROUP_COLOURS:
            bar = f"\x1b[38;5;{ansi_256(GROUP_COLOURS[part.group])}m{bar}\x1b[0m"
        yield f"{part.label:<{_LABEL}} {bar}{blanks} {text}"


# -- what to change


def advice(view: View, job: JobView, summary: LedgerSummary) -> Sequence[str]:
    """What the user can change, where that is true of this job; mostly nothing."""
    totals = _totals(summary)
    whole = sum(totals.values())
    if not job.steps() and not _was_watched(job):
        text = how_to_measure(job.id)
        return (f"{text[0].upper()}{text[1:]}.",) if totals.get("unmeasured") else ()
    lost = totals.get("replayed", 0) + totals.get("no_artefact", 0)
    if lost * 1_000_000 >= whole * _ADVISED_PPM and lost:
        return (_about_checkpoints(job),)
    by_size = sorted(((ns, leaf) for leaf, ns in totals.items() if leaf not in WINS), reverse=True)
    for ns, leaf in by_size:
        if ns * 1_000_000 < whole * _ADVISED_PPM:
            break
        if leaf in _TO_CHANGE:
            return (_TO_CHANGE[leaf],)
        if leaf == "start" and ns >= _START_ADVISED_NS and _may_be_warm(job):
            return (
                "Restarts imported everything again: `restart: {warm: true}` keeps a Python with PyTorch ready.",
            )
    return _about_free_gpus(view, job)


def _about_checkpoints(job: JobView) -> str:
    if job.spec.checkpoint_path is None:
        return "Save checkpoints and resume from them; `--checkpoint DIR` names their directory, so that saved steps count."
    if not any(_saved(attempt) for attempt in job.attempts):
        return f"No checkpoint appeared in {job.spec.checkpoint_path}: see that the script saves there."
    return "Save checkpoints more often, so that a failure loses fewer steps."


def _saved(attempt: AttemptView) -> bool:
    return attempt.saved_ns is not None


def _may_be_warm(job: JobView) -> bool:
    return len(job.attempts) > 1 and not job.spec.restart.warm and "python" in job.spec.command[0]


def _about_free_gpus(view: View, job: JobView) -> Sequence[str]:
    gpus = sum(1 for device in view.fleet.devices() if device.kind == "gpu")
    free = gpus - job.spec.devices
    alone = len(view.jobs) == 1 and job.state == "succeeded" and _unit(view, job) == "GPU"
    if not alone or free < job.spec.devices_per_rank:
        return ()
    most = gpus // job.spec.devices_per_rank
    return (
        f"{counted(free, 'GPU')} of {gpus} stayed free: a script that uses DDP or FSDP takes them with `--ranks {most}`.",
    )
