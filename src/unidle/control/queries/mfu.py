"""Model FLOPs utilisation: the operations that steps do, of those that their devices could have done meanwhile.

The definition is that of Chowdhery et al., PaLM (2022), appendix B. Operations are those of the job file (``flops``), or as its ranks
counted them in one step, with what they recompute. The peak is the fleet file's (``peak_tflops``), else that of the vendor's
data sheet for dense 16-bit numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from unidle.fleet import WHOLE_PPM
from unidle.view.speeds import slices_under

if TYPE_CHECKING:
    from unidle.view.jobs import AttemptView, JobView
    from unidle.view.state import View

_TERA = 1e12


@dataclass(frozen=True, slots=True)
class StepMfu:
    """Of one attempt. ``flops``: of one step of the gang; ``step_ns``: the median step; ``peak``: FLOP/s of all its devices."""

    attempt: int
    flops: float
    counted: bool
    step_ns: int
    peak: float

    @property
    def value(self) -> float:
        """At most about 1; more shows that the operations or the peak are not those of the job."""
        return self.flops / (self.step_ns / 1e9 * self.peak)

    def as_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt, "mfu": self.value, "flops_per_step": self.flops, "counted": self.counted, "step_ns": self.step_ns,
            "peak_tflops": self.peak / _TERA,
        }  # fmt: skip

    def text(self) -> str:
        done = f"{self.flops / _TERA:,.3g} TFLOP in a step of {self.step_ns / 1e6:,.1f} ms"
        how = ", counted" if self.counted else ""
        return f"MFU {100 * self.value:.1f} %: {done}{how}; peak {self.peak / _TERA:,.4g} TFLOP/s"


def job_mfu(view: View, job: JobView) -> StepMfu | None:
    """Of the latest attempt that shows steps; None where operations, steps or the peak of a device are not known."""
    if job.spec.flops is None:
        return None
    return next(
        (found for attempt in reversed(job.attempts) if (found := attempt_mfu(view, job, attempt))), None
    )


def attempt_mfu(view: View, job: JobView, attempt: AttemptView) -> StepMfu | None:
    """As :func:`job_mfu`, of one attempt."""
    if job.spec.flops is None:
        return None
    per_step = job.spec.flops.per_step
    flops = _counted(attempt) if per_step is None else per_step
    step_ns = _step_ns(attempt)
    peak = _peak(view, attempt)
    if flops is None or step_ns is None or not peak:
        return None
    return StepMfu(attempt.number, flops, per_step is None, step_ns, peak)


def why_unknown(view: View, job: JobView) -> str:
    """What is missing for the MFU of a job that has ``flops``; empty where nothing is, or no step was seen yet."""
    if job.spec.flops is None or not job.attempts or job_mfu(view, job) is not None:
        return ""
    attempt = job.attempts[-1]
    if _step_ns(attempt) is None:
        return ""
    if models := _without_peak(view, attempt):
        return f"MFU is not known: the peak of {', '.join(models)} is not; set peak_tflops in the fleet file"
    if job.spec.flops.per_step is None:
        missing = [k for k, rank in enumerate(attempt.ranks) if rank.flops is None]
        return f"MFU is not known: rank {missing[0]} counted no step; it has to call unidle.rank.step() after each, without torch.compile"
    return ""


def mfu_lines(view: View, job: JobView) -> list[str]:
    """What ``unidle show`` and the report have of it: a line, or none where the job gives no ``flops``."""
    mfu = job_mfu(view, job)
    text = why_unknown(view, job) if mfu is None else mfu.text()
    return [text] if text else []


def _counted(attempt: AttemptView) -> float | None:
    counts = [rank.flops for rank in attempt.ranks]
    return (
        None if None in counts or not counts else float(sum(count for count in counts if count is not None))
    )


def _step_ns(attempt: AttemptView) -> int | None:
    """The median step of the rank that shows most; steps that a rank reports together count as equal."""
    lead = max(attempt.ranks, key=lambda rank: len(rank.step_n), default=None)
    if lead is None or len(lead.step_n) < 2:
        return None
    gaps = zip(pairwise(lead.step_ns), pairwise(lead.step_n), strict=True)
    return round(median((t - s) / (m - n) for (s, t), (n, m) in gaps)) or None


def _peaks(view: View) -> Mapping[str, float]:
    return view.fleet.peak_tflops if view.fleet is not None else {}


def _tflops(declared: Mapping[str, float], model: str) -> float | None:
    if model in declared:
        return declared[model]
    from unidle.predict.by_gpu_model import peak_of  # `list` does without

    known = peak_of(model)
    return None if known is None else known.tflops


def _peak(view: View, attempt: AttemptView) -> float | None:
    """FLOP/s of the devices and parts of devices that the attempt holds; None where one is not known."""
    declared, total = _peaks(view), 0.0
    for ref in slices_under(view.book, attempt):
        if (tflops := _tflops(declared, ref.model)) is None:
            return None
        total += tflops * _TERA * ref.share_ppm / WHOLE_PPM
    return total


def _without_peak(view: View, attempt: AttemptView) -> list[str]:
    declared = _peaks(view)
    return sorted(
        {
            ref.model or "a GPU without a model"
            for ref in slices_under(view.book, attempt)
            if _tflops(declared, ref.model) is None
        }
    )
