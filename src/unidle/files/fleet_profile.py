"""The ``profile`` section of a fleet file: continuous profiling of running jobs."""

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
from unidle.fleet.policies import ProfilePolicy

_USUAL: Final = ProfilePolicy()
_S: Final = 1_000_000_000
_LEAST_BYTES: Final = 1 << 20
_KEEP: Final = DurationBounds(60 * _S, 365 * 86_400 * _S, "1 min to 365 days", "24h")


class ProfilePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Continuous profiles of running jobs, in short sample periods."""

    on: Annotated[bool, Meta(description="Whether running jobs are profiled.")] = False
    hz: Annotated[
        int, Meta(ge=1, le=999, description="Samples of each thread per second of a sample period.")
    ] = _USUAL.hz
    seconds: Annotated[
        float, Meta(ge=0.2, le=60, description="Length of a sample period, in seconds.", examples=[2])
    ] = _USUAL.look_ns / _S
    every_s: Annotated[
        float,
        Meta(
            ge=1, le=86_400, description="Time from the start of one sample period to the next, in seconds. It is extended if sample "
            "periods cost more than 1 % of a core.",
            examples=[60],
        ),
    ] = _USUAL.every_ns / _S  # fmt: skip
    keep: Annotated[
        DurationText | None,
        duration_field("Time for which profiles are kept. Default: 7d.", example="24h"),
    ] = None
    most_bytes: Annotated[
        Annotated[int, Meta(ge=_LEAST_BYTES, le=MEMORY_LIMIT_BYTES, description="Bytes.")] | MemoryText,
        Meta(
            description="Maximum size of all profiles in the store; one job may use a quarter of it. Old windows are "
            "first merged, then deleted.",
            examples=["256MiB"],
            extra={"says": f"{MEMORY_SAYS}, 1MiB to 1 PiB"},
        ),
    ] = _USUAL.most_bytes


def profile_of(document: Document, part: ProfilePart) -> ProfilePolicy:
    """The policy. Errors: :class:`unidle.errors.BadInput`."""
    if part.seconds > part.every_s:
        raise document.error(
            ("profile", "seconds"), "a sample period lasts longer than the time from one to the next", value=part.seconds,
            remedy="make every_s larger",
        )  # fmt: skip
    keep_ns = _USUAL.keep_ns if part.keep is None else _KEEP.ns(document, ("profile", "keep"), part.keep)
    most_bytes = memory_bytes(part.most_bytes)
    if not _LEAST_BYTES <= most_bytes <= MEMORY_LIMIT_BYTES:
        raise document.error(
            ("profile", "most_bytes"), "must be from 1MiB to 1 PiB", value=part.most_bytes, remedy="for instance 256MiB"
        )  # fmt: skip
    look_ns, every_ns = round(part.seconds * _S), round(part.every_s * _S)
    return ProfilePolicy(part.on, part.hz, look_ns, every_ns, keep_ns, most_bytes)


def profile_as_data(policy: ProfilePolicy) -> dict[str, object] | None:
    """The section that declares ``policy``; None where it is the usual one."""
    given, usual = _fields(policy), _fields(_USUAL)
    return {name: value for name, value in given.items() if value != usual[name]} or None


def _fields(policy: ProfilePolicy) -> dict[str, object]:
    return {
        "on": policy.on,
        "hz": policy.hz,
        "seconds": policy.look_ns / _S,
        "every_s": policy.every_ns / _S,
        "keep": duration_text(policy.keep_ns),
        "most_bytes": policy.most_bytes,
    }
