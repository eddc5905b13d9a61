"""The placement policy that unidle uses."""

from __future__ import annotations

from unidle.fleet import Fleet
from unidle.jobs import JobSpec, Reason
from unidle.place.first_fit import FirstFit
from unidle.place.plan import Plan, Policy
from unidle.place.queued import starves
from unidle.view.state import View


class Unidle:
    """``place.scheduler``; first fit on one plain node, if no job starves or wishes for more than devices.

    First fit then makes the same decisions, and starts without NumPy.
    """

    def __init__(self) -> None:
        self._simple = FirstFit()
        self._full: Policy | None = None

    def decide(self, view: View, now_ns: int) -> Plan:
        more = any(shape.wish for shape in view.waiting) or starves(view, now_ns)
        return self._for(view, more).decide(view, now_ns)

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        return self._for(view, bool(spec.wish)).why_not(view, spec)

    def ever(self, view: View, spec: JobSpec) -> bool:
        return self._for(view, bool(spec.wish)).ever(view, spec)

    def _for(self, view: View, wish: bool) -> Policy:
        if not wish and _is_plain(view.fleet):  # also after others wished for more: the view alone says it
            return self._simple
        if self._full is None:
            from unidle.place.scheduler import Scheduler

            self._full = Scheduler()
        return self._full


def _is_plain(fleet: Fleet) -> bool:
    """At most one node, GPUs of one model; no taints, spares, probation, cut devices, GPU links or queues."""
    if fleet.guard.keeps_spares or fleet.guard.probation_work != "none":
        return False
    if len(fleet.nodes) > 1 or fleet.queues or fleet.gpu_links or any(node.taints for node in fleet.nodes):
        return False
    gpus = {(device.vendor, device.model) for device in fleet.devices() if device.kind == "gpu"}
    return len(gpus) < 2 and all(len(device.slices_ppm) == 1 for device in fleet.devices())


def on_this_fleet(spec: JobSpec, view: View) -> JobSpec:
    """The job as the fleet of this view can run it, see :meth:`JobSpec.on_fleet_of`; unchanged where none is known."""
    if spec.device != "cpu" or not view.fleet.nodes:
        return spec
    return spec.on_fleet_of(view.occupancy.nodes.keys())
