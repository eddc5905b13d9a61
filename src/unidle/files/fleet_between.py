"""The ``between`` section of ``guard`` in a fleet file: the check of links between the nodes of a gang."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.files.values import DurationBounds, DurationText, duration_field, duration_text
from unidle.fleet.policies import Between

_MEASURES: Final = DurationBounds(50_000_000, 600 * 1_000_000_000, "0.05 s to 10 minutes", "1s")
_TIMES: Final = DurationBounds(1_000_000_000, 86_400 * 1_000_000_000, "1 s to 24 h", "2m")


class BetweenPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Check of the links between the nodes of a gang, before it starts."""

    gbps: Annotated[
        Annotated[float, Meta(ge=0.001, le=1e6)] | None,
        Meta(
            description="Rate that each two nodes must reach, in Gbit/s and in both directions at once. Default: 70 % of the "
            "better half of the pairs."
        ),
    ] = None
    measure: Annotated[
        DurationText | None, duration_field("Length of each measurement.", Between().measure_ns)
    ] = None
    method: Annotated[
        Literal["tcp", "gloo", "nccl"],
        Meta(
            description="How links are measured. tcp: TCP connections. gloo, nccl: an all-reduce of PyTorch."
        ),
    ] = "tcp"
    timeout: Annotated[
        DurationText | None, duration_field("Time limit of the check.", Between().timeout_ns)
    ] = None


def between_of(document: Document, part: BetweenPart | None) -> Between | None:
    """The policy of the section; None without one."""
    if part is None:
        return None
    path: Path = ("guard", "between")
    return Between(
        None if part.gbps is None else round(part.gbps * 1000),
        _duration(document, part.measure, (*path, "measure"), _MEASURES, Between().measure_ns),
        part.method,
        _duration(document, part.timeout, (*path, "timeout"), _TIMES, Between().timeout_ns),
    )


def _duration(document: Document, text: str | None, path: Path, bounds: DurationBounds, usual_ns: int) -> int:
    return usual_ns if text is None else bounds.ns(document, path, text)


def between_as_data(policy: Between) -> dict[str, object]:
    """The section that declares ``policy``."""
    found: dict[str, object] = {}
    if policy.least_mbps is not None:
        found["gbps"] = policy.least_mbps / 1000
    if policy.measure_ns != Between().measure_ns:
        found["measure"] = duration_text(policy.measure_ns)
    if policy.method != Between().method:
        found["method"] = policy.method
    if policy.timeout_ns != Between().timeout_ns:
        found["timeout"] = duration_text(policy.timeout_ns)
    return found
