"""The ``between`` section of ``guard`` in a fleet file: the check of links between the nodes of a gang."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.files.values import END, DurationBounds, DurationText, duration_field, duration_text
from unidle.fleet.policies import Between
from unidle.words import counted

_MEASURES: Final = DurationBounds(50_000_000, 600 * 1_000_000_000, "0.05 s to 10 minutes", "1s")
_TIMES: Final = DurationBounds(1_000_000_000, 86_400 * 1_000_000_000, "1 s to 24 h", "2m")
LEAST_PORTS: Final = 3
"""The leader's two: for the other nodes, and for what is measured. And that of an all-reduce."""


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
    ports: Annotated[
        Annotated[
            str, Meta(pattern=r"^\d{1,5}-\d{1,5}" + END, extra={"says": "a range of ports, as 7500-7509"})
        ]
        | None,
        Meta(
            description="TCP ports that nodes listen on during the check, first and last: at least three. Default: any.",
            examples=["7500-7509"],
        ),
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
        _ports(document, part.ports, (*path, "ports")),
    )


def _ports(document: Document, text: str | None, path: Path) -> tuple[int, int] | None:
    if text is None:
        return None
    first, last = (int(port) for port in text.split("-"))
    if not 1024 <= first <= last <= 65535:
        raise document.error(
            path, "must be two ports from 1024 to 65535, the lower one first", value=text, remedy="for instance 7500-7509"
        )  # fmt: skip
    if last - first + 1 < LEAST_PORTS:
        raise document.error(
            path, f"has {counted(last - first + 1, 'port')}, and a node needs up to {LEAST_PORTS}", value=text,
            remedy=f"for instance {first}-{min(first + 9, 65535)}" if first < 65530 else "for instance 7500-7509",
        )  # fmt: skip
    return first, last


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
    if policy.ports is not None:
        found["ports"] = f"{policy.ports[0]}-{policy.ports[1]}"
    return found
