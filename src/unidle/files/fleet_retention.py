"""The ``retention`` section of a fleet file: how long the files of ended jobs are kept."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from unidle.files.document import Document
from unidle.files.values import (
    MEMORY_LIMIT_BYTES,
    MEMORY_SAYS,
    DurationBounds,
    DurationText,
    MemoryText,
    duration_field,
    duration_text,
    memory_bytes,
)
from unidle.fleet.policies import HOUR_NS, RetentionPolicy

_LEAST_BYTES: Final = 1 << 20
_TIMES: Final = DurationBounds(1_000_000_000, 10 * 365 * 24 * HOUR_NS, "1 s to 3650 days", "30d")


class RetentionPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on the files of jobs that have ended. Jobs beyond a limit are removed, those that ended first before others."""

    age: Annotated[
        DurationText | None,
        duration_field(
            "Time since the end of a job after which it is removed. Default: no limit.", example="30d"
        ),
    ] = None
    size: Annotated[
        Annotated[int, Meta(ge=_LEAST_BYTES, le=MEMORY_LIMIT_BYTES, description="Bytes.")]
        | MemoryText
        | None,
        Meta(
            description="Maximum size on disk of the files of all ended jobs. Default: no limit.",
            examples=["20GB"],
            extra={"says": f"{MEMORY_SAYS}, 1MiB to 1 PiB"},
        ),
    ] = None
    jobs: Annotated[
        Annotated[int, Meta(ge=0, le=10_000_000)] | None,
        Meta(description="Maximum number of ended jobs with files. Default: no limit.", examples=[10_000]),
    ] = None
    compress: Annotated[
        DurationText | bool | None,
        duration_field(
            "Time since the end of a job after which its logs and journals are compressed into the store; false: they "
            "stay as files.",
            HOUR_NS,
        ),
    ] = None


def retention_of(document: Document, part: RetentionPart | None) -> RetentionPolicy:
    """The policy; without a section nothing is removed or compressed. Errors: :class:`unidle.errors.BadInput`."""
    if part is None:
        return RetentionPolicy()
    compress_ns: int | None = HOUR_NS
    if part.compress is False:
        compress_ns = None
    elif isinstance(part.compress, str):
        compress_ns = _TIMES.ns(document, ("retention", "compress"), part.compress)
    age_ns = None if part.age is None else _TIMES.ns(document, ("retention", "age"), part.age)
    size_bytes = None if part.size is None else memory_bytes(part.size)
    if size_bytes is not None and not _LEAST_BYTES <= size_bytes <= MEMORY_LIMIT_BYTES:
        raise document.error(
            ("retention", "size"), "must be from 1MiB to 1 PiB", value=part.size, remedy="for instance 20GB"
        )
    return RetentionPolicy(age_ns, size_bytes, part.jobs, compress_ns)


def retention_as_data(policy: RetentionPolicy) -> dict[str, object] | None:
    """The section that declares ``policy``; None if there is no policy."""
    if not policy.on:
        return None
    found: dict[str, object] = {
        "compress": False if policy.compress_ns is None else duration_text(policy.compress_ns)
    }
    if policy.age_ns is not None:
        found["age"] = duration_text(policy.age_ns)
    if policy.size_bytes is not None:
        found["size"] = policy.size_bytes
    if policy.jobs is not None:
        found["jobs"] = policy.jobs
    return found
