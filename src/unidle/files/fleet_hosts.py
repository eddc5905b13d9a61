"""The fleet file's ``hosts``: how devices of hosts that join are cut."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from unidle.files.document import Document
from unidle.files.fleet_share import SharingPart, check_sharing, sharing_of
from unidle.files.values import PRINTABLE_PATTERN, PRINTABLE_SAYS
from unidle.fleet import WHOLE_PPM, HostDevices

_Label = Annotated[str, Meta(pattern=PRINTABLE_PATTERN, max_length=317, extra={"says": PRINTABLE_SAYS})]


class HostDevicesPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices of hosts, and how they are cut: on demand (``share``) or always in the same way (``slices_ppm``)."""

    kind: Annotated[Literal["gpu", "cpu"], Meta(description="Kind of device.", examples=["gpu"])]
    labels: Annotated[
        dict[_Label, _Label],
        Meta(
            max_length=256,
            description="Labels that a host must have, with their values. Default: all hosts.",
            examples=[{"rack": "r1"}],
        ),
    ] = {}
    slices_ppm: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=WHOLE_PPM)], ...],
        Meta(
            min_length=1,
            max_length=1024,
            description="Fixed slices of each device, in millionths of it. Their sum must be 1,000,000.",
            examples=[[500_000, 500_000]],
        ),
    ] = (WHOLE_PPM,)
    share: Annotated[
        SharingPart | None,
        Meta(
            description="Methods to divide the device for jobs that request a part of it. A host has those that it offers.",
            examples=[{"modes": ["mig", "mps"]}],
        ),
    ] = None


def host_devices_of(
    document: Document, parts: tuple[HostDevicesPart, ...], hosts_join: bool
) -> tuple[HostDevices, ...]:
    """The rules of the section. Errors: BadInput, also where no hosts join."""
    if parts and not hosts_join:
        raise document.error(
            ("hosts",), "is for hosts that join a controller (`unidle up --listen`)",
            remedy="declare `share` or `slices_ppm` of the devices of nodes",
        )  # fmt: skip
    found = []
    for k, part in enumerate(parts):
        if sum(part.slices_ppm) != WHOLE_PPM:
            raise document.error(
                ("hosts", k, "slices_ppm"), f"the shares sum to {sum(part.slices_ppm):,}, not to {WHOLE_PPM:,}",
                value=list(part.slices_ppm), remedy="a share is in millionths of the device",
            )  # fmt: skip
        sharing = None
        if part.share is not None:
            check_sharing(
                document, part.share, part.kind, "nvidia", part.slices_ppm, ("hosts", k, "share"), model=None
            )
            sharing = sharing_of(part.share, part.kind, "nvidia")
        found.append(HostDevices(part.kind, dict(part.labels), part.slices_ppm, sharing))
    return tuple(found)
