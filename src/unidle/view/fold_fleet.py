"""Events of controllers and of the fleet, applied to the view. Part of the fold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from msgspec import UNSET

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.fleet import WHOLE_PPM, Health, Node, slices_of
from unidle.fleet.labels import UNSCHEDULABLE
from unidle.ledger.book import SliceRef
from unidle.view.node_edits import edited
from unidle.view.partitions import carried, carried_node, recut
from unidle.view.records import UseView
from unidle.view.state import View

_SPARE: Final = "reserved"
"""The leaf of a spare's free time; such a slice is free for those who may use spares."""
_DRAINED: Final = "drained"
"""Of a node that others have cordoned; it is free for jobs that tolerate that."""


def controller_started(view: View, event: ev.ControllerStarted, now: int) -> None:
    view.running = True
    view.profiler = None  # until it says otherwise
    view.book.covers_ns = event.covers_ns
    view.boot, view.clock_offset_ns = event.boot, event.clock_offset_ns
    view.modelled, view.policy = event.modelled, event.policy
    for job_id in view.live:  # what the last controller measured does not hold any more
        attempt = view.jobs.open[job_id].attempts[-1]
        busy_ns = now if attempt.use.use == "busy" else attempt.use.busy_ns
        attempt.use = UseView(busy_ns=busy_ns)


def controller_stopped(view: View, _event: ev.ControllerStopped, _now: int) -> None:
    view.running = False


def sighted(_view: View, _event: ev.Sighted, _now: int) -> None:
    """The sighting itself is what counts."""


def events_lost(view: View, event: ev.EventsLost, _now: int) -> None:
    if view.seq == event.first:
        view.book.lose(event.since_ns, event.until_ns, event.unsure_ns)


def request_refused(_view: View, _event: ev.RequestRefused, _now: int) -> None:
    """For readers of the log; no effect on the view."""


def fleet_seen(view: View, event: ev.FleetSeen, now: int) -> None:
    fleet = carried(view, event.fleet)
    before = {k for k, ref in enumerate(view.book.slices) if ref.gone_ns is None}
    seen = set()
    for node in fleet.nodes:
        seen |= _sight_node(view, node, now)
    for k in sorted(before - seen):
        if not view.book.held[k]:
            view.book.remove(k, now)
    if fleet.history != view.fleet.history:
        view.usage.settle(now, view.fleet.history.half_life_ns)
    view.fleet = fleet
    view.fleet_changed()
    for node_id in view.taken.keys() - view.nodes.keys():
        view.set_taken(node_id, None)


def fleet_changed(view: View, event: ev.FleetChanged, now: int) -> None:
    """Costs what changed, but for a copy of the list of nodes; indexes by place stay where no node comes or goes."""
    places, nodes, book = view.nodes, list(view.fleet.nodes), view.book
    gone = {node_id for node_id in event.gone if node_id in places}
    for edit in event.edits:
        if (order := places.get(edit.id)) is not None:
            nodes[order] = edited(nodes[order], edit)
    for node in event.put:
        order = places.get(node.id)
        before = {} if order is None else {device.id: device for device in nodes[order].devices}
        there = carried_node(view, node, before)
        seen = _sight_node(view, there, now)
        for k in book.on(node.id):
            if k not in seen and not book.held[k]:
                book.remove(k, now)
        if order is None:
            nodes.append(there)
        else:
            nodes[order] = there
    for node_id in sorted(gone):
        view.set_taken(node_id, None)
        for k in book.on(node_id):
            if not book.held[k]:
                book.remove(k, now)
    kept = tuple(node for node in nodes if node.id not in gone) if gone else tuple(nodes)
    view.fleet = replace(view.fleet, nodes=kept)
    if event.put or gone or any(edit.parent is not UNSET for edit in event.edits):
        view.fleet_changed()
    for edit in event.edits:
        view.edited.add(edit.id)
    _close_again(view, event, now)


def _close_again(view: View, event: ev.FleetChanged, now: int) -> None:
    """The taints of nodes may have changed."""
    changed = [edit.id for edit in event.edits if edit.taints is not UNSET]
    for k in (k for name in (*changed, *(node.id for node in event.put)) for k in view.book.on(name)):
        if is_open(view, k):
            set_down(view, k, now)


def fleet_declared(view: View, event: ev.FleetDeclared, now: int) -> None:
    """Nodes stay as they are. One whose tier is no more is put again by the events that follow."""
    if event.fleet.history != view.fleet.history:
        view.usage.settle(now, view.fleet.history.half_life_ns)
    view.fleet = replace(event.fleet, nodes=view.fleet.nodes)
    view.fleet_changed()


def _sight_node(view: View, node: Node, now: int) -> set[int]:
    book = view.book
    seen = set()
    for device in node.devices:
        for piece in slices_of(device):
            if not book.knows(piece.id) or book.slices[book.index(piece.id)].gone_ns is not None:
                book.add(SliceRef(piece.id, device.id, node.id, device.model, piece.share_ppm, now))
                leaf, user = _down_leaf(view, device.id, node.id, node)
                book.set_down(book.index(piece.id), leaf, user, now_ns=now)
            seen.add(book.index(piece.id))
    return seen


def device_cut(view: View, event: ev.DeviceCut, now: int) -> None:
    before = view.cuttable(event.device)
    if before is None:
        raise StoreDamaged(
            "the log cuts a device that is not cut on demand",
            field=f"event {view.seq}", value=event.device, remedy="run `unidle store check`",
        )  # fmt: skip
    device = recut(before, event.cut)
    book = view.book
    old, new = {s.id: s for s in slices_of(before)}, {s.id: s for s in slices_of(device)}
    wrong = sum(s.share_ppm for s in new.values()) != WHOLE_PPM or any(
        book.held[book.index(s)] for s in old if new.get(s) != old[s]
    )
    if wrong:
        raise StoreDamaged(
            "the log cuts a device in another way than its jobs use it, or its parts do not add up",
            field=f"event {view.seq}", value=event.device, remedy="run `unidle store check`",
        )  # fmt: skip
    for gone in old.keys() - new.keys():
        book.remove(book.index(gone), now)
    for piece in new.values():
        if piece.id not in old:
            book.add(SliceRef(piece.id, device.id, device.node, device.model, piece.share_ppm, now))
            leaf, user = _down_leaf(view, device.id, device.node)
            book.set_down(book.index(piece.id), leaf, user, now_ns=now)
    if device.cut is None:
        view.stays.pop(device.id, None)
    view.cut_changed(device)


def health_set(view: View, event: ev.HealthSet, now: int) -> None:
    if event.health == "healthy":
        view.health.pop(event.target, None)
    else:
        view.health[event.target] = event.health
    for k in view.book.on(event.target):
        set_down(view, k, now)


def close(view: View, target: str, leaf: Health | None, now: int) -> None:
    """A node or device takes no new job from now on (``leaf``: what its free time is), or takes some again."""
    if view.closed.get(target) == leaf:
        return
    if leaf is None:
        del view.closed[target]
    else:
        view.closed[target] = leaf
    for k in view.book.on(target):
        if is_open(view, k):
            set_down(view, k, now)


def spares_set(view: View, event: ev.SparesSet, now: int) -> None:
    changed = view.spares.symmetric_difference(event.nodes)
    view.spares = set(event.nodes)
    for k in (k for node in sorted(changed) for k in view.book.on(node)):
        if is_open(view, k):
            set_down(view, k, now)


def is_open(view: View, k: int) -> bool:
    """Whether a slice may be given to a job that is no filler: no such job has it."""
    return not view.book.held[k] or view.book.slices[k].id in view.fillers.on


def entered(view: View, numbers: Iterable[int], now: int) -> None:
    """A job gets these slices: that those of a spare are kept, or those on probation closed, ends meanwhile."""
    for k in numbers:
        if k in view.book.down:
            ref = view.book.slices[k]
            leaf, user = _down_leaf(view, ref.device, ref.node, held=True)
            view.book.set_down(k, leaf, user, now_ns=now)


def left(view: View, slice_ids: Iterable[str], now: int) -> None:
    """A job has left these slices; those that take no new one are not free."""
    for slice_id in slice_ids:
        k = view.book.index(slice_id)
        ref = view.book.slices[k]
        if ref.gone_ns is None and (
            ref.device in view.closed
            or ref.node in view.closed
            or ref.node in view.spares
            or ref.device in view.taken_devices
            or _is_drained(view, ref.node)
        ):
            set_down(view, k, now)


def set_down(view: View, k: int, now: int) -> None:
    """Whether and why a slice is down, now that something changed; who holds a closed one still uses it."""
    book, ref = view.book, view.book.slices[k]
    leaf, user = _down_leaf(view, ref.device, ref.node, held=book.held[k])
    book.set_down(k, leaf, user, now_ns=now)
    if view.occupancy.knows(ref.id) and is_open(view, k):
        leaf = _down_leaf(view, ref.device, ref.node)[0] if book.held[k] else leaf
        usable = leaf is None or leaf in (_SPARE, _DRAINED)
        (view.occupancy.give_back if usable else view.occupancy.take)([ref.id])


def _down_leaf(
    view: View, device: str, node: str, as_listed: Node | None = None, *, held: bool = False
) -> tuple[str | None, str]:
    """Why a device's slices are not simply free: its own health before its node's, that it takes no new job, a spare's,
    that others have cordoned it. And who of others uses it. ``as_listed``: a node that is not in the view yet."""
    leaf = view.health.get(device) or view.health.get(node)
    if leaf or held:
        return leaf, ""
    if closed := view.closed.get(device) or view.closed.get(node):
        return closed, ""
    if device in view.taken_devices:
        return view.taken_devices[device]
    if node in view.spares:
        return _SPARE, ""
    drained = _is_drained(view, node) if as_listed is None else UNSCHEDULABLE in as_listed.taints
    return (_DRAINED if drained else None), ""


def _is_drained(view: View, node: str) -> bool:
    order = view.nodes.get(node)
    return order is not None and UNSCHEDULABLE in view.fleet.nodes[order].taints
