"""unidle keeps every GPU-second of a training fleet at work and shows where each one went.

From Python: :func:`run`, :func:`submit`, :func:`job`, :func:`list_jobs`, :class:`Job`, and the errors in ``unidle.errors``.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing would double what every rank that imports unidle.rank loads
if TYPE_CHECKING:
    from unidle import errors as errors
    from unidle.api.answers import Explanation, Profiled
    from unidle.api.fields import JobFields
    from unidle.api.job_object import Job
    from unidle.api.running import job, list_jobs, run, submit

__all__ = ["Explanation", "Job", "JobFields", "Profiled", "errors", "job", "list_jobs", "run", "submit"]

_ROOMS = {
    "Explanation": "answers", "Job": "job_object", "JobFields": "fields", "Profiled": "answers",
    "job": "running", "list_jobs": "running", "run": "running", "submit": "running",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import the Python interface when it is first used: ``import unidle`` alone costs nothing."""
    from importlib import import_module

    if name == "errors":
        return import_module("unidle.errors")
    if name not in _ROOMS:
        raise AttributeError(f"module 'unidle' has no attribute {name!r}")
    value: object = getattr(import_module(f"unidle.api.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
