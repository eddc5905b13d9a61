"""How many parts a class of devices that may be cut on demand has for a job, by a cluster's summary.

A bound from above: that work on one device slows each other down, and where instances may lie, is for the cluster's own
decision.
"""

from __future__ import annotations

from unidle.fleet import WHOLE_PPM, Device
from unidle.fleet.summary import NodeClass
from unidle.jobs import Share
from unidle.share.mig_models import model_of
from unidle.share.modes import MPS_CLIENTS, needs_of, profile_for
from unidle.share.refusal import Refused
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
    model = model_of(one.model, one.memory_bytes)
    if model is not None and "mig" in cut.modes and share.mode in ("any", "mig"):
        name = profile_for(share, model)
        if not isinstance(name, Refused):
            profile = model.profile(name)
            ppm, bytes_ = model.compute_ppm(profile), model.bytes_of(profile)
            count = min(WHOLE_PPM, cut.compute_ppm) // ppm
            found.append((min(count, min(one.memory_bytes, cut.memory_bytes) // bytes_), milli_of(ppm)))
    bounded = {"quota", "mps", "time"} if share.mode == "any" else {share.mode} - {"mig"}
    ways = bounded & {*cut.modes}
    need = needs_of(share, Device("a device", "", 0, one.kind, memory_bytes=one.memory_bytes))
    if ways and not share.profile and not isinstance(need, Refused):
        compute, memory = need
        count = cut.compute_ppm // compute
        count = min(count, cut.memory_bytes // memory) if memory else count
        count = min(count, MPS_CLIENTS) if ways == {"mps"} else count
        found.append((count, milli_of(max(1, compute * WHOLE_PPM // cut.factor_ppm))))
    return [way for way in found if way[0] > 0]
