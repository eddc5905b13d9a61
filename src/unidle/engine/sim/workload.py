"""What simulated gangs do: durations that are given, failures from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from unidle.engine.protocol import StartGang
from unidle.events.marks import Mark

S = 1_000_000_000


class Happening(NamedTuple):
    """At ``after_ns`` from the start of the gang, rank ``rank`` leaves ``mark`` (its time is filled in)."""

    after_ns: int
    rank: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job's true behaviour, which the policies do not know.

    ``fails`` maps an attempt (from 1) to ``(rank, after_ns, code)``. Steps are reported by rank 0
    only where ``step_ns`` is not zero; every ``checkpoint_every`` steps one is saved.
    """

    work_ns: int
    startup_ns: int = 0
    step_ns: int = 0
    checkpoint_every: int = 0
    fails: Mapping[int, tuple[int, int, int]] | None = None


Workload = Callable[[StartGang], SimJob]


def happenings(command: StartGang, job: SimJob, done_steps: int) -> Iterator[Happening]:
    """What the gang will do if nobody stops it, in order of time.

    ``done_steps`` is the step from which it resumes; the work of those steps is not done again.
    """
    ranks = len(command.places)
    for rank in range(ranks):
        yield Happening(0, rank, Mark("spawn", 0, pid=rank + 1, ticks=command.attempt))
    left_ns = max(job.work_ns - done_steps * job.step_ns, 0)
    end_ns = job.startup_ns + left_ns
    failure = (job.fails or {}).get(command.attempt)
    stop_ns = end_ns if failure is None else min(failure[1], end_ns)
    if job.step_ns:
        at, step = job.startup_ns, done_steps
        yield Happening(min(at, stop_ns), 0, Mark("ready", 0))
        while at + job.step_ns <= stop_ns:
            at, step = at + job.step_ns, step + 1
            yield Happening(at, 0, Mark("step", 0, n=step, o="helper"))
            if job.checkpoint_every and step % job.checkpoint_every == 0:
                yield Happening(at, 0, Mark("saved", 0, n=step))
    if failure is not None and failure[1] < end_ns:
        yield Happening(stop_ns, failure[0] % ranks, Mark("exit", 0, code=failure[2]))
        return
    for rank in range(ranks):
        yield Happening(end_ns, rank, Mark("exit", 0, code=0))


def seeded(
    seed: int, *, mean_work_s: float, startup_s: float = 5.0, step_s: float = 0.0, checkpoint_every: int = 0,
    failures_per_rank_hour: float = 0.0,
) -> Workload:  # fmt: skip
    """Exponential durations and failures, the same for the same seed, job and attempt."""

    def workload(command: StartGang) -> SimJob:
        of_job = random.Random(f"{seed}/{command.job}")
        work_s = of_job.expovariate(1 / mean_work_s)
        fails: dict[int, tuple[int, int, int]] = {}
        rate = failures_per_rank_hour * len(command.places) / 3600
        if rate > 0:
            of_attempt = random.Random(f"{seed}/{command.job}/{command.attempt}")
            after_s = of_attempt.expovariate(rate)
            if after_s < startup_s + work_s:
                rank = of_attempt.randrange(len(command.places))
                fails[command.attempt] = (rank, int(after_s * S), -9)
        return SimJob(int(work_s * S), int(startup_s * S), int(step_s * S), checkpoint_every, fails)

    return workload
