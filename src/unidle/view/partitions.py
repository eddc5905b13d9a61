"""State of devices that are cut again: on demand, or by another fleet file. Pure.

A slice's name always denotes the same share: a device that is cut again is of the next generation, which is part
of the names of its new slices. So the ledger's rows of one name always count the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from unidle.fleet import WHOLE_PPM, Cut, Device, Fleet, Node, device_of, slices_of
from unidle.jobs import RankPlace
from unidle.view.state import View


def recut(device: Device, cut: Cut) -> Device:
    """The device with this cut; whole again if it has one part without a job."""
    whole = len(cut.parts) == 1 and cut.parts[0].share_ppm == WHOLE_PPM and not cut.parts[0].job
    return replace(device, generation=device.generation + 1, cut=None if whole else cut)


def carried(view: View, seen: Fleet) -> Fleet:
    """The fleet as it is declared now, with the cuts and generations that its devices have by now."""
    before = {device.id: device for device in view.fleet.devices()}
    nodes = tuple(carried_node(view, node, before) for node in seen.nodes)
    return seen if nodes == seen.nodes else replace(seen, nodes=nodes)


def carried_node(view: View, node: Node, before: Mapping[str, Device]) -> Node:
    """A node as it is declared now, with the cuts and generations of its devices ``before``, by id."""
    devices = tuple(_carried(view, device, before.get(device.id)) for device in node.devices)
    return node if devices == node.devices else replace(node, devices=devices)


def _carried(view: View, device: Device, before: Device | None) -> Device:
    if before is None:
        return _renamed_apart(view, device)
    if before.cut is not None and _in_use(view, before):  # as it was, until nobody uses its parts
        return replace(
            device,
            slices_ppm=before.slices_ppm,
            generation=before.generation,
            cut=before.cut,
            kind=before.kind,
        )
    if before.slices_ppm == device.slices_ppm and before.cut is None:
        return replace(device, generation=before.generation)
    return replace(device, generation=before.generation + 1)


def _in_use(view: View, device: Device) -> bool:
    book = view.book
    return any(book.held[book.index(piece.id)] for piece in slices_of(device))


def _renamed_apart(view: View, device: Device) -> Device:
    """A device that was away and comes back cut otherwise gets names that never stood for other shares."""
    book = view.book
    while any(
        book.knows(s.id) and book.slices[book.index(s.id)].share_ppm != s.share_ppm for s in slices_of(device)
    ):
        device = replace(device, generation=device.generation + 1)
    return device


def renamed(fleet: Fleet, places: tuple[RankPlace, ...]) -> tuple[RankPlace, ...]:
    """Places by the names that slices have now: logs from before generations name them by device and number."""
    wanted = {device_of(slice_id) for place in places for slice_id in place.slices}
    names: dict[str, str] = {}
    for device in fleet.devices():
        if device.id in wanted and device.cut is None:
            names.update(_old_names(device))
    return tuple(
        RankPlace(place.rank, place.node, tuple(names.get(s, s) for s in place.slices)) for place in places
    )


def _old_names(device: Device) -> Iterator[tuple[str, str]]:
    pieces = slices_of(device)
    for k, piece in enumerate(pieces):
        yield (device.id if len(pieces) == 1 else f"{device.id}#{k}"), piece.id
