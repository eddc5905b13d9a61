"""How the devices of a host are cut: as the fleet file allows, in the ways that its agent offers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from unidle.fleet import PART_MODES, WHOLE_PPM, CutMode, Device, HostDevices, Node, Sharing

OF_OLDER_RELEASE: Final = "its agent is of an older release"


def offers_parts(node: Node) -> bool:
    """Whether the agent that describes its node so can make parts of devices."""
    return any(device.sharing is not None for device in node.devices)


def ruled(node: Node, rules: Sequence[HostDevices]) -> Node:
    """The node as its agent describes it, with devices that are cut by the first rule that fits each."""
    return replace(node, devices=tuple(_ruled(node, device, rules) for device in node.devices))


def _ruled(node: Node, device: Device, rules: Sequence[HostDevices]) -> Device:
    whole = replace(device, sharing=None, slices_ppm=(WHOLE_PPM,), generation=0, cut=None)
    rule = next(
        (one for one in rules if one.kind == device.kind and one.labels.items() <= node.labels.items()), None
    )
    if rule is None:
        return whole
    if rule.sharing is None:
        return whole if device.sharing is None else replace(whole, slices_ppm=rule.slices_ppm)
    return replace(whole, sharing=_offered(rule.sharing, device))


def _offered(allowed: Sharing, device: Device) -> Sharing | None:
    """Of the modes that are allowed those that the host offers; None where none of them is for such a device."""
    of_kind = PART_MODES[device.vendor if device.kind == "gpu" else device.kind]
    modes: list[CutMode] = [mode for mode in allowed.modes if mode in of_kind]
    if not modes:
        return None
    offer = device.sharing
    if offer is None:
        return replace(allowed, modes=(), why_not=tuple((mode, OF_OLDER_RELEASE) for mode in modes))
    why = dict(offer.why_not)
    lacking = tuple(
        (mode, why.get(mode, "the host does not offer it")) for mode in modes if mode not in offer.modes
    )
    return replace(allowed, modes=tuple(mode for mode in modes if mode in offer.modes), why_not=lacking)
