"""Events of sick nodes, applied to the view. Part of the fold."""

from __future__ import annotations

from unidle.events import types as ev
from unidle.fleet import Device, Health
from unidle.view import node_health as of
from unidle.view.fold_fleet import close
from unidle.view.state import View


def fault_seen(view: View, event: ev.FaultSeen, now: int) -> None:
    of.fault_seen(view.care, event, event.device if device_of(view, event.device) else "", now)


def remedy_set(view: View, event: ev.RemedySet, now: int) -> None:
    device = device_of(view, event.target)
    node = device.node if device is not None else event.target
    of.remedy_set(view.care, event, node, identity_of(view, event.target), view.seq, now)
    _reclose(view, event.target, now)


def cordon_set(view: View, event: ev.CordonSet, now: int) -> None:
    of.cordon_set(view.care, event, now)
    _reclose(view, event.node, now)


def maintenance_set(view: View, event: ev.MaintenanceSet, _now: int) -> None:
    of.maintenance_set(view.care, event)


def node_checked(view: View, event: ev.NodeChecked, now: int) -> None:
    of.node_checked(view.care, event, now)


def links_checked(view: View, event: ev.LinksChecked, now: int) -> None:
    of.links_checked(view.care, event, now)


def device_of(view: View, target: str) -> Device | None:
    """The device of this name; None where it is a node's, or unknown."""
    if "/" not in target:
        return None
    return next(
        (d for n in view.fleet.nodes if target.startswith(n.id) for d in n.devices if d.id == target), None
    )


def identity_of(view: View, target: str) -> str:
    """The identity of a target, independent of its position."""
    device = device_of(view, target)
    return (device.uuid if device is not None else "") or target


def _reclose(view: View, target: str, now: int) -> None:
    """A target that is drained or cordoned takes no new job; running jobs continue."""
    here = view.care.targets.get(target)
    leaf: Health | None = None
    if here is not None and here.state == "draining":
        leaf = "maintenance" if here.step == "maintenance" else "quarantine"
    elif target in view.care.cordons:
        leaf = "maintenance"
    elif here is not None and here.state == "probation" and view.fleet.guard.probation_work != "none":
        leaf = "quarantine"
    close(view, target, leaf, now)
