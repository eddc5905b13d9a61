"""unidle keeps every GPU-second of a training fleet at work and shows where each one went.

From Python: :func:`run`, :func:`submit`, :func:`job`, :func:`list_jobs`, :class:`Job`, and the errors :class:`UnidleError`,
:class:`BadInput` and :class:`JobFailed`; all errors are in ``unidle.errors``.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing would double what every rank that imports unidle.rank loads
if TYPE_CHECKING:
    from unidle import errors as errors
    from unidle.api.job_object import Job
    from unidle.api.jobs import job, list_jobs, run, submit
    from unidle.api.results import Explanation, Profiled
    from unidle.errors import BadInput, JobFailed, UnidleError
    from unidle.files.job_file import JobFields

__all__ = [
    "BadInput", "Explanation", "Job", "JobFailed", "JobFields", "Profiled", "UnidleError",
    "errors", "job", "list_jobs", "run", "submit",
]  # fmt: skip

_MODULES = {
    "BadInput": "errors", "JobFailed": "errors", "UnidleError": "errors",
    "Explanation": "api.results", "Job": "api.job_object", "JobFields": "files.job_file", "Profiled": "api.results",
    "job": "api.jobs", "list_jobs": "api.jobs", "run": "api.jobs", "submit": "api.jobs",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import the Python interface when it is first used: ``import unidle`` alone costs nothing."""
    from importlib import import_module

    if name == "errors":
        return import_module("unidle.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'unidle' has no attribute {name!r}")
    value: object = getattr(import_module(f"unidle.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
