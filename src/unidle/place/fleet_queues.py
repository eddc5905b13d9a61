"""The queues that a fleet declares, as a tree with amounts, and what no state of it lets start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from unidle.fleet import WHOLE_PPM, Fleet, slices_of
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Reason
from unidle.place.queue.fair import Shares
from unidle.place.queue.model import Amounts
from unidle.place.queue.past import fairness_of
from unidle.place.queue.spec import MILLI, amounts_of
from unidle.place.queue.tree import ROOT, QueueTree
from unidle.place.queued import KINDS
from unidle.share.mig_models import mig_models
from unidle.view.usage import charged

ALL: Final = "jobs"  # the one queue of a fleet that declares none


def never(fleet: Fleet, spec: JobSpec, now_ns: int, least: int | None = None) -> Reason | None:
    """Why no state of these queues lets the job start; None where one does.

    ``least`` is the least that it would be charged, in thousandths of devices, where that is known.
    """
    if not fleet.queues:
        return None
    tree = tree_of_queues(fleet)
    empty = Shares(tree, totals(fleet, tree.resources, frozenset()), now_ns, fairness_of(fleet))
    kinds = tuple(dict.fromkeys(device.kind for device in fleet.devices()))
    return never_in(
        empty, spec, spec.queue, kinds, Bounds.of(fleet).least_milli(spec) if least is None else least
    )


class Bounds(NamedTuple):
    """What bounds a charge from below: kinds that have whole devices and those there are, the largest factor and memory."""

    kinds: frozenset[str]
    whole_kinds: frozenset[str]
    factor_ppm: int
    memory_bytes: int

    @classmethod
    def of(cls, fleet: Fleet) -> Bounds:
        devices = fleet.devices()
        return cls(
            frozenset(d.kind for d in devices),
            frozenset(d.kind for d in devices if len(d.slices_ppm) == 1),
            max((d.sharing.compute_ppm for d in devices if d.sharing is not None), default=WHOLE_PPM),
            max((d.memory_bytes for d in devices), default=0),
        )

    def least_milli(self, spec: JobSpec) -> int:
        """The least that a queue is charged for the job, wherever it runs, in thousandths of devices."""
        share = spec.share
        if share is None:
            whole = all(kind in self.whole_kinds for kind in KINDS[spec.device] if kind in self.kinds)
            return spec.devices * MILLI if whole else 0
        ppm = share.compute_ppm
        if share.profile:
            sizes = [m.compute_ppm(m.profile(share.profile)) for m in mig_models() if m.knows(share.profile)]
            return spec.ranks * (min(sizes, default=0) * MILLI // WHOLE_PPM)
        if not ppm and self.memory_bytes:
            ppm = share.memory_bytes * WHOLE_PPM // self.memory_bytes
        return spec.ranks * (ppm * MILLI // self.factor_ppm)


def never_in(empty: Shares, spec: JobSpec, queue: str, kinds: Sequence[str], asked: int) -> Reason | None:
    """The same for books in which nothing is used, and a job that is charged ``asked`` thousandths of devices."""
    tree = empty.tree
    index = tree.index.get(queue)
    if index is None or tree.children[index]:
        leaves = sorted(name for name, k in tree.index.items() if not tree.children[k])
        known = ", ".join(leaves[:8])
        return Reason("no_queue", f"there is no queue {queue} that takes jobs; there are {known}")
    if any(spec.windows for spec in tree.specs):
        return None  # at other hours it may
    kind = next((k for k in KINDS[spec.device] if k in kinds), "gpu")
    amounts = charged(spec, kind, asked)
    wanted = tuple(amounts.get(resource, 0) for resource in tree.resources)
    refusal = empty.refusal(index, wanted, firm=spec.preemption != "low")
    if refusal is None or (refusal.queue == ROOT and refusal.rule == "full"):
        return None  # the fleet itself is too small, and its own reason says so
    bound, of = refusal.bound, tree.resources[refusal.resource]
    text = f"{tree.name(refusal.queue) or 'a queue'} may use at most {bound / MILLI:g} {of}"
    if refusal.rule == "kept":
        whole = empty.quota.bound[refusal.queue][refusal.resource]
        of_all = f"{tree.name(refusal.queue) or 'the fleet'}'s {whole / MILLI:g} {of}"
        text = f"{(whole - bound) / MILLI:g} of {of_all} are kept for other queues"
    text += f", and the job asks for {refusal.asked / MILLI:g}: it can never start here"
    return Reason("over_limit", text, {"bound": bound, "asked": refusal.asked})


def check_queues(fleet: Fleet) -> None:
    """:class:`BadInput` for the first mistake in a fleet's queues, with the field ``queues.NAME...``."""
    tree = tree_of_queues(fleet)
    tree.check_capacity(totals(fleet, tree.resources, frozenset()))


def totals(fleet: Fleet, resources: Sequence[str], unfit: Collection[str]) -> Amounts:
    """Devices that are healthy, in thousandths, by resource."""
    totals = dict.fromkeys(resources, 0)
    for device in fleet.devices():
        if slices_of(device)[0].id in unfit:
            continue
        for resource in (device.kind, f"{device.kind}:{device.model}"):
            if resource in totals:
                totals[resource] += MILLI
    return tuple(totals[resource] for resource in resources)


def tree_of_queues(fleet: Fleet) -> QueueTree:
    specs = fleet.queues or (QueueSpec(ALL),)
    named = {resource for spec in specs for _, amounts in amounts_of(spec) for resource in amounts}
    models = sorted({f"{d.kind}:{d.model}" for d in fleet.devices() if d.model}) if named else []
    if named <= {"gpu", "cpu", *models}:
        models = [model for model in models if model in named]
    return QueueTree.of(specs, ("gpu", "cpu", *models), fleet.zone)
