"""Why an attempt failed: which rank failed first, with what, and who failed because of it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Container
from typing import Final

from unidle.guard.exit_codes import BUGS, meaning_of, signal_name
from unidle.jobs import FAILURE_KINDS, Failure, FailureKind, JobSpec
from unidle.view.host_clocks import order_is_known
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.words import amount_of_memory

_S: Final = 1_000_000_000
_PAGES: Final = 1 << 20
_CANNOT_EXEC: Final = (126, 127)
_STOPPED: Final = (-signal.SIGTERM, -signal.SIGKILL)
_FAULTS: Final = ("gpu", "storage", "node")

# -- which rank ---------------------------------------------------------------------------------------


def find_culprit(attempt: AttemptView, ignored: Container[int] = ()) -> int | None:
    """The rank that failed first: the earliest of those that did not fail because of another; None where none failed.

    When one rank dies its peers soon end with errors of their connections. Of these, and of ranks that ended after the
    order to stop, one is named only where there is no other; ``ignored`` ones never.
    """
    failed = [(k, rank) for k, rank in enumerate(attempt.ranks) if rank.failed and k not in ignored]
    before = [(k, rank) for k, rank in failed if not _after_stop(attempt, rank)]
    best = min(((_order(rank), rank.end_ns or 0, k) for k, rank in before), default=None)
    if best is None and attempt.stop is not None:
        return None
    if best is None or best[0] >= _PLAIN:
        # one whose traceback was on its way when the order to stop came, or that hung in its last words
        late = [(rank.end_ns or 0, k) for k, rank in failed if _after_stop(attempt, rank) and has_cause(rank)]
        if late:
            return min(late)[1]
    if best is None:
        return min(((rank.end_ns or 0, k) for k, rank in failed), default=(0, None))[1]
    return best[2]


_LOST, _CAUSE, _PLAIN, _SYMPTOM = range(4)


def _order(rank: RankView) -> int:
    if rank.lost:
        return _LOST
    if is_symptom(rank):
        return _SYMPTOM
    if has_cause(rank) or cannot_start(rank) or (rank.code is not None and rank.code < 0):
        return _CAUSE
    return _PLAIN


def _after_stop(attempt: AttemptView, rank: RankView) -> bool:
    if attempt.stop_ns is None or rank.end_ns is None:
        return False
    stopped = rank.end_ns == attempt.stop_ns and rank.code in _STOPPED  # in a simulation that takes no time
    return rank.end_ns > attempt.stop_ns or stopped


def is_symptom(rank: RankView) -> bool:
    """Whether its last output reports the failure of another rank."""
    return rank.last is not None and rank.last.symptom and not rank.info.get("oom")


def has_cause(rank: RankView) -> bool:
    """Whether it is known why it failed by itself."""
    if rank.info.get("oom"):
        return True
    return rank.last is not None and rank.last.sort != "line" and not rank.last.symptom


def cannot_start(rank: RankView) -> bool:
    """The command does not exist or may not be executed: no further try can help."""
    return rank.spawn_ns is None and rank.code in _CANNOT_EXEC


# -- in words -----------------------------------------------------------------------------------------


def how_ended(rank: RankView) -> str:
    """In words: ``exited 3``, ``was killed by SIGKILL``, ``ran out of memory: ...``, ``was lost``."""
    if rank.lost:
        return f"was lost ({rank.notes[-1][1]})" if rank.notes else "was lost"
    if rank.code is None:
        return "is alive"
    if _is_out_of_memory(rank):
        return f"ran out of memory{_limit(rank, None)}"
    if cannot_start(rank):
        return f"cannot start: {rank.notes[-1][1]}" if rank.notes else "cannot start"
    if rank.code < 0:
        return f"was killed by {signal_name(-rank.code)}"
    return f"exited {rank.code}"


def _is_out_of_memory(rank: RankView) -> bool:
    """The kernel killed a process of it for want of memory, and no error of another kind ended it."""
    if not rank.info.get("oom") or not rank.code:
        return False
    last = rank.last
    if (
        rank.code == -signal.SIGKILL
        or last is None
        or last.sort == "line"
        or last.kind in ("memory", "unknown")
    ):
        return True
    words = ("kill", "-9", "137", "terminated abruptly", "exited unexpectedly", "broken pipe", "eoferror")
    return last.symptom or any(word in last.what.lower() for word in words)


def _limit(rank: RankView, spec: JobSpec | None) -> str:
    """Which limit it ran into, and who used how much."""
    limit, whose = rank.info.get("oom_limit_bytes"), rank.info.get("oom_limit_of")
    if not isinstance(limit, int):
        return ""
    own = spec.limits.memory_bytes if spec is not None else None
    if own is not None and abs(own - limit) < _PAGES:
        limit = own  # the kernel counts in pages
    size = amount_of_memory(limit)
    names = {
        "rank": f"limits.memory is {size}"
        if _by_limits(rank, spec)
        else f"its part of the device has {size}",
        "above": f"a control group above the job's has {size}",
        "machine": f"the machine has {size}",
    }
    text = f": {names.get(str(whose), f'the limit is {size}')}"
    used, process = rank.info.get("oom_used_bytes"), rank.info.get("oom_process")
    if isinstance(used, int) and process:
        text += f"; {process} used {amount_of_memory(used, like=size)} and needed more"
    return text


def _by_limits(rank: RankView, spec: JobSpec | None) -> bool:
    if spec is None or spec.share is None:
        return True
    return abs((spec.limits.memory_bytes or 0) - int(rank.info.get("oom_limit_bytes") or 0)) < _PAGES


def error_of(rank: RankView, spec: JobSpec | None = None) -> tuple[str, str]:
    """The error in its output, and where; empty if no known error is there."""
    if _is_out_of_memory(rank):
        return f"out of memory{_limit(rank, spec)}", ""
    last = rank.last
    if last is None or rank.lost or last.sort == "line" or not last.what:
        return "", ""
    return last.what, last.where


def text_of(rank: RankView, number: int, spec: JobSpec | None = None) -> str:
    """``rank 1: ValueError: shapes (3,4) and (5,) not aligned (crash.py:5)``; else how it ended."""
    what, where = error_of(rank, spec)
    if what:
        return f"rank {number}: {what}" + (f" ({where})" if where else "")
    text = f"rank {number} {how_ended(rank)}"
    line = rank.last.what if rank.last is not None else ""
    return f"{text}: {line}" if line and not rank.lost and (rank.code or 0) > 0 else text


def kind_of(attempt: AttemptView, rank: RankView) -> FailureKind:
    """Which kind of failure a rank's is: by a fault of its devices or node, what it printed, and how it ended."""
    if _is_out_of_memory(rank):
        return "memory"
    if rank.lost or _by_fault(attempt, rank):
        return "machine"
    if rank.last is not None and rank.last.what and (rank.last.sort != "line" or rank.last.kind != "unknown"):
        return rank.last.kind
    if cannot_start(rank):
        return "code"
    number = 0 if rank.code is None else -rank.code if rank.code < 0 else max(rank.code - 128, 0)
    if number:
        name = signal_name(number)
        return "code" if name in BUGS else {"SIGBUS": "memory", "SIGILL": "machine"}.get(name, "unknown")  # type: ignore[return-value]
    return "unknown"


def kind_of_hang(attempt: AttemptView) -> FailureKind:
    """Which kind of failure a gang's is that stood still: the network's where that was seen to be cut."""
    return "network" if attempt.verdict is not None and attempt.verdict.kind == "cut" else "unknown"


def _known_kind(attempt: AttemptView) -> FailureKind | None:
    """The kind that the log has."""
    return next((kind for kind in FAILURE_KINDS if kind == attempt.failure_kind), None)


_NEAR_NS: Final = 300 * _S


def _by_fault(attempt: AttemptView, rank: RankView) -> bool:
    """Whether a fault of its devices or node came shortly before, and is not over."""
    end_ns = rank.end_ns or 0
    return any(
        v.kind in _FAULTS
        and v.over_ns is None
        and end_ns - v.onset_ns <= _NEAR_NS
        and v.because.code != "oom"
        for v in attempt.verdicts
    )


# -- the whole of it ----------------------------------------------------------------------------------


def failure_of_job(job: JobView) -> Failure | None:
    """Why the job's last attempt failed; None where it did not, or the job succeeded or was cancelled."""
    last = job.attempts[-1] if job.attempts else None
    return None if last is None or job.state in ("succeeded", "cancelled") else failure_of(job, last)


def failure_of(job: JobView, attempt: AttemptView) -> Failure | None:
    """Why an attempt failed; None where it did not (yet)."""
    if attempt.outcome not in (None, "failed"):
        return None
    stop = attempt.stop
    if stop is not None and stop.why == "hung":
        return _of_hang(job, attempt)
    if stop is not None and stop.why != "rank_failed":
        return None
    number = attempt.culprit
    if number is None:
        number = find_culprit(attempt, job.spec.ignored_ranks) if attempt.outcome == "failed" else None
    return None if number is None else _of_rank(job, attempt, number)


def _of_hang(job: JobView, attempt: AttemptView) -> Failure:
    stop = attempt.stop
    assert stop is not None
    kind = kind_of_hang(attempt)
    # a thread or a child that died may be what the others wait for
    spoke = next((k for k, rank in enumerate(attempt.ranks) if has_cause(rank)), None)
    number = stop.culprit if spoke is None else spoke
    rank = attempt.ranks[number] if number is not None else None
    lines = rank.last.lines if rank is not None and rank.last is not None else ()
    advice = []
    if spoke is not None:
        advice.append(f"an error before that: {text_of(attempt.ranks[spoke], spoke, job.spec)}")
    if attempt.stacks is not None and attempt.stacks.stacks:
        advice.append(attempt.stacks.because.text)
    words = ("unidle", "logs", job.id, "--attempt", str(attempt.number))
    return Failure(
        attempt.number, stop.culprit, kind, stop.because.text, stop.because.text, lines=lines, help="; ".join(advice), next=words
    )  # fmt: skip


def _of_rank(job: JobView, attempt: AttemptView, number: int) -> Failure:
    rank = attempt.ranks[number]
    what, where = error_of(rank, job.spec)
    name = signal_name(-rank.code) if rank.code is not None and rank.code < 0 and not rank.lost else None
    others = [
        (k, other) for k, other in enumerate(attempt.ranks) if k != number and other.failed and k not in job.spec.ignored_ranks
    ]  # fmt: skip
    same = tuple(k for k, other in others if what and error_of(other, job.spec) == (what, where))
    unsure = tuple(k for k, other in others if _may_be_first(attempt, number, k))
    # one that says that another failed before is no cause of what the others have
    known = [one for one in others if one[0] not in (*same, *unsure) and not is_symptom(rank)]
    fell = tuple(k for k, other in known if _fell(attempt, rank, other))
    kind = _known_kind(attempt) or kind_of(attempt, rank)
    return Failure(
        attempt.number, number, kind, what or _plain_what(rank), text_of(rank, number, job.spec), where,
        None if rank.lost else rank.code, name, _meaning(rank), rank.last.lines if rank.last is not None else (), fell, same, unsure,
        _help(job, rank, what, kind), _next(job, attempt, number, rank, kind),
    )  # fmt: skip


def _may_be_first(attempt: AttemptView, first: int, other: int) -> bool:
    """Whether the clocks of two hosts leave open which of these ranks failed first."""
    alike = _order(attempt.ranks[other]) == _order(attempt.ranks[first])
    return (
        alike and not _after_stop(attempt, attempt.ranks[other]) and not order_is_known(attempt, first, other)
    )


def _fell(attempt: AttemptView, first: RankView, other: RankView) -> bool:
    """Whether a rank failed because of the first: stopped for it, its output shows it, or it ended later without a cause."""
    later = (other.end_ns or 0) >= (first.end_ns or 0)
    return _after_stop(attempt, other) or is_symptom(other) or (later and not has_cause(other))


def _plain_what(rank: RankView) -> str:
    line = rank.last.what if rank.last is not None and (rank.code or 0) > 0 and not rank.lost else ""
    return f"{how_ended(rank)}: {line}" if line else how_ended(rank)


def _meaning(rank: RankView) -> str:
    """The meaning of its exit code or signal, if there is an agreed one."""
    code = rank.code
    if rank.lost or code is None or cannot_start(rank):
        return ""
    if _is_out_of_memory(rank):
        return "the kernel killed a process of it to free memory"
    return meaning_of(code)


_ADVICE: Final = {
    ("no space left", "quota exceeded"): "make room on the disk that the job writes to",
    (
        "too many open files",
    ): "raise the limit of open files (ulimit -n) where unidle starts, or see what the program leaves open",
    (
        "killed by signal: killed",
    ): "a DataLoader worker was killed, most often for lack of memory: use fewer workers"
    " (num_workers), or more memory",
}


def _help(job: JobView, rank: RankView, what: str, kind: FailureKind) -> str:
    """What the user can change; empty where the error makes it clear."""
    last = rank.last
    if _is_out_of_memory(rank):
        whose = rank.info.get("oom_limit_of")
        if whose == "rank":
            return (
                "raise limits.memory of the job" if _by_limits(rank, job.spec) else "ask for a larger share"
            )
        return "use less memory in each rank, or fewer ranks on one node"
    if kind == "memory":
        return _help_for_memory(job, rank, what)
    if "cannot open shared object file" in what:
        return "install that library, or set LD_LIBRARY_PATH in the job's env to its directory"
    if last is not None and last.sort == "import":
        return (
            "install the module where the command's interpreter finds it, or set PYTHONPATH in the job's env"
        )
    if (last is not None and last.sort == "command") or cannot_start(rank):
        return f"check command and workdir of the job; it ran in {job.spec.workdir}"
    for words, advice in _ADVICE.items():
        if any(word in what.lower() for word in words):
            return advice
    if is_symptom(rank) and job.spec.ranks > 1:
        return "it waited for another rank, or lost it: see what the others printed last"
    if not what and _crashed_python(job, rank):
        return "set PYTHONFAULTHANDLER=1 in the job's env: the next crash then shows its line"
    return ""


def _help_for_memory(job: JobView, rank: RankView, what: str) -> str:
    if "CUDA" in what or "HIP" in what:
        return "use a smaller batch on each device, or more devices; for fragmentation set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    if "shared memory" in what or "shm" in what:
        return "shared memory (/dev/shm) is full: give the container more of it (--shm-size), or use fewer DataLoader workers"
    if "us error" in what or rank.code == -signal.SIGBUS:
        return (
            "either shared memory (/dev/shm) is full: give the container more of it (--shm-size), or use fewer DataLoader workers; "
            "or a mapped file became shorter while it was read"
        )
    return "use less memory in each rank" + (
        ", or raise limits.memory" if job.spec.limits.memory_bytes else ""
    )


def _crashed_python(job: JobView, rank: RankView) -> bool:
    """Whether a Python program was killed by a signal of its own doing, without the line."""
    own = rank.code is not None and rank.code < 0 and signal_name(-rank.code) in BUGS
    return (
        own
        and "PYTHONFAULTHANDLER" not in job.spec.env
        and "python" in job.spec.command[0].rpartition("/")[2]
    )


def _next(
    job: JobView, attempt: AttemptView, number: int, rank: RankView, kind: FailureKind
) -> tuple[str, ...]:
    """The next command that shows more."""
    if (
        _is_out_of_memory(rank)
        or cannot_start(rank)
        or (rank.last is not None and rank.last.sort == "command")
    ):
        return ("unidle", "show", job.id)
    if kind == "machine":
        return ("unidle", "guard", "incidents", "--job", job.id) if not rank.last else ("unidle", "check")
    words = ["unidle", "logs", job.id]
    if len(attempt.ranks) > 1 and not is_symptom(rank):
        words += ["--rank", str(number)]
    if attempt is not job.attempts[-1]:
        words += ["--attempt", str(attempt.number)]
    return tuple(words)
