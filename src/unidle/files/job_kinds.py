"""What contradicts a filler or a service in a job file."""

from __future__ import annotations

from typing import Final

from unidle.files.document import Document
from unidle.files.job_file import JobFile
from unidle.files.job_parts import RanksPart, ServicePart

_NOT_OF_FILLERS: Final = {
    "preemption": "preemption is high: a filler never has others stopped",
    "min_runtime_s": "min_runtime_s keeps others waiting",
    "share": "share requests a part of a device: a filler gets whole ones",
    "ranks": "ranks has min and max: a filler has one size",
    "queue_timeout_s": "queue_timeout_s bounds a wait that may have no end",
    "devices_per_rank": "devices_per_rank is 0: a filler fills devices",
}


def check_class(document: Document, file: JobFile) -> None:
    """Fields that contradict a job which makes room at any moment."""
    if file.job_class != "filler":
        return
    others = {
        "preemption": file.preemption == "high", "min_runtime_s": file.min_runtime_s > 0, "share": file.share is not None,
        "ranks": isinstance(file.ranks, RanksPart), "queue_timeout_s": file.queue_timeout_s is not None,
        "devices_per_rank": not file.devices_per_rank,
    }  # fmt: skip
    name = next((name for name, there in others.items() if there), None)
    if name is not None:
        raise document.error(
            ("class",), f"is filler, and {_NOT_OF_FILLERS[name]}", value="filler", remedy=f"remove {name}, or class"
        )  # fmt: skip


def check_service(document: Document, file: JobFile) -> None:
    """Fields that contradict a job without an end, and a service that no job is."""
    if file.kind != "service":
        if file.service != ServicePart():
            raise document.error(
                ("service",), "the job is no service", remedy="add kind: service, or remove it"
            )
        return
    others = {
        "restart": file.restart.max > 0, "timeout_s": file.timeout_s is not None, "ranks": isinstance(file.ranks, RanksPart),
        "class": file.job_class == "filler",
    }  # fmt: skip
    name = next((name for name, there in others.items() if there), None)
    if name is not None:
        why = {
            "restart": "restart.max bounds its restarts: a service is always restarted",
            "timeout_s": "timeout_s ends it: a service ends when it is cancelled",
            "ranks": "ranks has min and max: replicas have one size",
            "class": "class is filler: a service keeps its devices",
        }[name]
        raise document.error(
            ("kind",), f"is service, and {why}", value="service", remedy=f"remove {name}, or kind"
        )
