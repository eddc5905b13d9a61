"""How many parts a class of devices that may be cut on demand has for a job, by a cluster's summary.

A bound from above: that work on one device slows each other down, and where instances may lie, is for the cluster's own
decision.
"""

from __future__ import annotations

from unidle.fleet import WHOLE_PPM, Device, Sharing
from unidle.fleet.summary import NodeClass
from unidle.jobs import Share
from unidle.share.modes import MPS_CLIENTS
from unidle.share.offers import bounded_modes, promises
from unidle.share.parts import share_of
from unidle.view.usage import milli_of


def parts_of(one: NodeClass, share: Share) -> int:
    """Parts for this share that one device of the class may be cut into; of a rest, that it has left."""
    return max((count for count, _ in _ways(one, share)), default=0)


def least_milli(one: NodeClass, share: Share) -> int:
    """The least that one part is charged, in thousandths of a device."""
    return min((milli for _, milli in _ways(one, share)), default=0)


def _ways(one: NodeClass, share: Share) -> list[tuple[int, int]]:
    """Count and charge of a part, for MIG and for bounds."""
    cut, found = one.cut, list[tuple[int, int]]()
    if cut is None:
        return found
    sharing = Sharing(cut.modes, cut.factor_ppm)
    device = Device("", "", 0, one.kind, one.model, memory_bytes=one.memory_bytes, sharing=sharing)
    for promise in promises(device, share):
        compute, memory = cut.compute_ppm, cut.memory_bytes
        if promise.mode == "mig":  # of which no more than all is promised
            compute, memory = min(compute, WHOLE_PPM), min(memory, one.memory_bytes)
        count = compute // promise.compute_ppm
        if promise.memory_bytes:
            count = min(count, memory // promise.memory_bytes)
        if promise.mode != "mig" and bounded_modes(share) & {*cut.modes} == {"mps"}:
            count = min(count, MPS_CLIENTS)
        found.append((count, milli_of(share_of(device, promise))))
    return [way for way in found if way[0] > 0]
