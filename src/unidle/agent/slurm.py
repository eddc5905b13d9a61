"""The Slurm allocation that this process runs in: the name of its node, and when it ends (``srun(1)``, output environment)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LEAVE_S: Final = 30.0
"""So long before the end of an allocation its node leaves the fleet: Slurm sends SIGTERM at the end, and then kills."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """``end_s``: when it ends, in seconds of the wall clock; None where Slurm did not say."""

    job: str
    node: str
    end_s: float | None

    def leaves_in_s(self, now_s: float) -> float | None:
        """Until its node should leave; 0 when that is due; None while it is not known."""
        return None if self.end_s is None else max(self.end_s - LEAVE_S - now_s, 0.0)


def allocation(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """None outside of Slurm."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return None
    end = environ.get("SLURM_JOB_END_TIME", "")
    return Allocation(job, environ.get("SLURMD_NODENAME", ""), float(end) if end.isdigit() else None)
