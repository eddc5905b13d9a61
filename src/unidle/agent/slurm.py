"""The Slurm allocation that this process runs in: the name of its node, and when it ends (``srun(1)``, output environment)."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

LEAVE_S: Final = 30.0
"""So long before the end of an allocation its node leaves the fleet: Slurm sends SIGTERM at the end, and then kills."""
_ANSWERS_WITHIN_S: Final = 4.0  # with the 25 s in which boxes end, less than LEAVE_S


def asked_end_s(job: str) -> float | None:
    """When Slurm ends a job by its time limit, in seconds of the wall clock; infinity without a limit; None if it gives no answer."""
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%e"]
    environ = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_ANSWERS_WITHIN_S, check=False,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    answer = done.stdout.strip()
    if answer == "NONE":
        return math.inf
    return float(answer) if answer.isdecimal() else None


@dataclass(slots=True)
class Allocation:
    """``end_s``: when it ends, in seconds of the wall clock; infinity without a limit; None where Slurm gave no answer.

    ``ask`` is :func:`asked_end_s`.
    """

    job: str
    node: str
    end_s: float | None
    ask: Callable[[str], float | None]

    def is_ending(self, now_s: float) -> bool:
        """Whether its node should leave now. Slurm is asked again first, as a time limit can be extended."""
        if self.end_s is None or now_s < self.end_s - LEAVE_S:
            return False
        if (end_s := self.ask(self.job)) is not None:
            self.end_s = end_s
        return now_s >= self.end_s - LEAVE_S


def allocation(
    environ: Mapping[str, str] = os.environ, ask: Callable[[str], float | None] = asked_end_s
) -> Allocation | None:
    """None outside of Slurm. A Slurm that does not give the end in the environment is asked for it."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return None
    end = environ.get("SLURM_JOB_END_TIME", "")
    end_s = float(end) if end.isdecimal() else ask(job)
    return Allocation(job, environ.get("SLURMD_NODENAME", ""), end_s, ask)
