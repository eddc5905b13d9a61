"""Which of several clusters gets a job: judged by their summaries, domain by domain, not by quota alone.

A summary gives necessary conditions and an order; the cluster that is chosen decides by itself, and may
find that CPU, memory or a group's wish is in the way. Who could start the job now comes first, of those
the one that keeps its preferred tier, then the one that holds it in the lowest tier, then the cheaper
one, then the one with the least left over in that domain. Of the others the first is who expects to
start it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from unidle.fleet import WHOLE_PPM, Device, Sharing
from unidle.fleet.labels import kind_of
from unidle.fleet.summary import CapacitySummary, DomainStock, NodeClass, QueueRoom, Stock, TierStock
from unidle.jobs import JobSpec, Reason, Share
from unidle.place.protocol import KINDS, noun
from unidle.share.modes import MPS_CLIENTS
from unidle.share.offers import bounded_modes, promises
from unidle.share.parts import share_of
from unidle.share.select import names_model
from unidle.view.usage import milli_of
from unidle.words import are, counted


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


Prefer = Literal["start", "cost"]
State = Literal["now", "later", "never"]
_LATEST: Final = 1 << 62


class _Each(NamedTuple):
    """What one slice of a class is to a job: so many parts, each charged ``milli`` at least."""

    parts: int
    milli: int
    rest: bool

    @classmethod
    def of(cls, one: NodeClass, share: Share | None) -> _Each:
        if share is None or one.cut is None:
            return cls(1, milli_of(one.share_ppm), one.rest)
        return cls(parts_of(one, share), least_milli(one, share), one.rest)


Pool: TypeAlias = Mapping[int, _Each]
"""Classes that a job may use together, by their index."""


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """What one cluster can do for a job. ``tier`` holds the gang now; ``cost`` is of one hour of all devices."""

    cluster: str
    state: State
    because: Reason
    tier: str = ""
    height: int = 0  # of the tier, from 0 for a node
    left: int = 0  # ranks that the domain would still hold
    start_in_ns: int | None = None
    crowd: float = 0.0  # devices waited for, by device
    preferred: bool = False
    cost: float | None = None
    currency: str = ""


def ranked(verdicts: Iterable[ClusterVerdict], prefer: Prefer = "start") -> list[ClusterVerdict]:
    """The best first; those of one worth in the order given. ``prefer`` "cost" puts price before start and tier."""
    order = {"now": 0, "later": 1, "never": 2}

    def key(verdict: ClusterVerdict) -> tuple[object, ...]:
        cost = verdict.cost if verdict.cost is not None else float("inf")
        start = verdict.start_in_ns if verdict.start_in_ns is not None else _LATEST
        where = (not verdict.preferred, verdict.height)
        how = (order[verdict.state], start)
        fits = (verdict.crowd, verdict.left)
        if verdict.state == "never":
            return (1,)
        return (0, cost, *how, *where, *fits) if prefer == "cost" else (0, *how, *where, cost, *fits)

    return sorted(verdicts, key=key)


def judge(cluster: str, summary: CapacitySummary, spec: JobSpec) -> ClusterVerdict:
    """What ``cluster`` can do for the job, by its summary. Pure."""
    verdicts = [_judge(cluster, summary, spec, kind) for kind in KINDS[spec.device]]
    return ranked(verdicts)[0]


def _judge(cluster: str, summary: CapacitySummary, spec: JobSpec, kind: str) -> ClusterVerdict:
    def never(code: str, text: str, **figures: int) -> ClusterVerdict:
        return ClusterVerdict(cluster, "never", Reason(code, text, dict(figures)))

    pools = _pools(summary, spec, kind)
    if not pools:
        return never("no_device", f"has no {noun(kind, 1)} that the job may use")
    queue = next((q for q in summary.queues if q.queue == spec.queue), None)
    if summary.queues and queue is None:
        return never("no_queue", f"has no queue {spec.queue} that takes jobs")
    asked = _asked_milli(spec, pools)
    if queue is not None and (bound := queue.bound_milli.get(kind, 0)) < asked:
        text = f"its queue {spec.queue} may use {bound / 1000:g} {noun(kind, bound / 1000)}, the job needs {asked / 1000:g}"
        return never("over_limit", text, bound=bound, asked=asked)
    fabric = spec.topology.fabric if spec.topology else None
    if fabric is not None and fabric not in summary.fabrics:
        return never("no_fabric", f"has no {fabric} between its nodes")
    tiers = _tiers(summary, spec)
    if not tiers:
        assert spec.topology is not None
        return never("no_tier", f"has no tier of kind {spec.topology.require}")
    most = max(_most(tier, pool, spec) for tier in _ends(tiers) for pool in pools)
    if most < spec.ranks:
        text = f"no {tiers[-1].kind} of it ever holds more than {most} of {counted(spec.ranks, 'rank')}"
        return never("too_small", text, most=most, needs=spec.ranks)
    return _when(cluster, summary, spec, kind, pools, tiers, queue)


def _asked_milli(spec: JobSpec, pools: Sequence[Pool]) -> int:
    """The least that the queue is charged, in thousandths of devices."""
    return spec.devices * min(each.milli for pool in pools for each in pool.values())


def _when(
    cluster: str, summary: CapacitySummary, spec: JobSpec, kind: str, pools: Sequence[Pool],
    tiers: Sequence[TierStock], queue: QueueRoom | None,
) -> ClusterVerdict:  # fmt: skip
    cost = _cost(summary, spec, pools)
    kinds = [tier.kind for tier in summary.tiers]
    quota = queue is None or queue.free_milli.get(kind, 0) >= _asked_milli(spec, pools)
    whole = summary.tiers[-1]
    waits = sum(summary.pending.get(k, 0) for k in (kind, "any"))
    free = max(sum(_slices(whole, pool, free=True) for pool in pools) - waits, 0)
    total = max(sum(_slices(whole, pool, free=False) for pool in pools), 1)
    crowd = (waits + sum(summary.waiting.get(k, 0) for k in (kind, "any"))) / total
    fitting = [
        (_tier_rank(tier, kinds), room - spec.ranks, tier)
        for tier in tiers
        for pool in pools
        if (room := _least(tier, pool, spec)) is not None
    ]
    holds = any(_least(tier, pool, spec) is not None for tier in _ends(tiers) for pool in pools)
    if quota and holds and free >= spec.devices:
        height, left, tier = min(fitting, key=lambda found: found[:2])
        wish = spec.topology.prefer if spec.topology else None
        preferred = wish is None or height <= _height_of(wish, kinds)
        such = counted(left + spec.ranks, "such rank")
        text = f"a {tier.kind} of it has room for {such} now, {free} {noun(kind, free)} {are(free)} free"
        because = Reason("room_now", text, {"tier": tier.kind, "ranks": left + spec.ranks, "free": free})
        return ClusterVerdict(
            cluster, "now", because, tier.kind, height, left, 0, crowd, preferred, cost, summary.currency
        )
    start_ns = _start_in(summary, spec, kind, free)
    why = f"{free} of {total} {noun(kind, total)} {are(free)} free for it"
    if not quota and queue is not None:
        why = f"its queue {spec.queue} may use {(more := max(queue.free_milli.get(kind, 0), 0) / 1000):g} more {noun(kind, more)}"
    elif free >= spec.devices:
        why += f", but no {tiers[-1].kind} holds it whole"
    if start_ns is not None:
        why += f"; by the run times of its jobs, room is free in {start_ns / 60e9:.0f} min"
    because = Reason("room_later", why, {"free": free, "total": total})
    return ClusterVerdict(
        cluster, "later", because, "", len(kinds), 0, start_ns, crowd, False, cost, summary.currency
    )


def _pools(summary: CapacitySummary, spec: JobSpec, kind: str) -> list[Pool]:
    """Classes that the job may use together, by the rules of ``place.nodes.hardware``."""
    by_model: dict[tuple[str, str], dict[int, _Each]] = {}
    by_vendor: dict[str, dict[int, _Each]] = {}
    for code, one in enumerate(summary.classes):
        if one.kind == kind and _may_use(one, spec, summary.hidden):
            each = _Each.of(one, spec.share)
            by_model.setdefault((one.vendor, one.model), {})[code] = each
            by_vendor.setdefault(one.vendor, {})[code] = each
    single = list[Pool](by_model.values())
    tiers = _tiers(summary, spec)
    alone = any(_most(tier, pool, spec) >= spec.ranks for tier in _ends(tiers) for pool in single)
    if kind == "gpu" and alone and not spec.hardware.mix:
        return single
    return list(by_vendor.values())


def _may_use(one: NodeClass, spec: JobSpec, hidden: Sequence[str]) -> bool:
    where, share = spec.where, spec.share
    if any(one.labels.get(key) != value for key, value in where.labels.items() if key not in hidden):
        return False
    if not set(one.taints) <= set(where.tolerate):
        return False
    if one.kind == "gpu" and spec.hardware.vendor not in ("any", one.vendor):
        return False
    models = where.models
    if models.include and not any(names_model(name, one.model) for name in models.include):
        return False
    if any(names_model(name, one.model) for name in models.exclude):
        return False
    if share is None:
        return one.share_ppm == WHOLE_PPM and not one.rest
    memory = one.memory_bytes * one.share_ppm // WHOLE_PPM
    if one.cut is None:
        return WHOLE_PPM > one.share_ppm >= share.compute_ppm and memory >= share.memory_bytes
    return parts_of(one, share) > 0


def _tiers(summary: CapacitySummary, spec: JobSpec) -> list[TierStock]:
    """The kinds of tiers that may hold the gang, up to the required kind, outside of which a lower one may lie."""
    require = spec.topology.require if spec.topology else None
    nodes = TierStock("node", _single(summary.tiers[-1]))
    if require is None:
        return [nodes, *summary.tiers]
    if require == "node":
        return [nodes]
    kinds = [tier.kind for tier in summary.tiers]
    at = next((kinds.index(word) for word in (require, kind_of(require)) if word in kinds), None)
    return [] if at is None else [nodes, *summary.tiers[: at + 1]]


def _ends(tiers: Sequence[TierStock]) -> list[TierStock]:
    """The nodes, and what has to hold the gang: a node outside of any such tier holds it together, too."""
    return [tiers[0], tiers[-1]] if tiers else []


def _single(whole: TierStock) -> tuple[DomainStock, ...]:
    """Each node as a domain of its own."""
    return tuple(
        DomainStock(stock.nodes, (Stock(stock.of, stock.slices, stock.free, 1),))
        for domain in whole.domains
        for stock in domain.stock
    )


def _ranks(domain: DomainStock, pool: Pool, spec: JobSpec, *, free: bool) -> int:
    tp = 1
    if spec.topology is not None and spec.layout is not None and spec.topology.groups.get("tp") == "node":
        tp = spec.layout.tp
    return sum(
        _count(stock, pool, free=free) // spec.devices_per_rank // tp * tp * stock.nodes
        for stock in domain.stock
        if stock.of in pool
    )


def _count(stock: Stock, pool: Pool, *, free: bool) -> int:
    """Devices of one node, or parts of them; what is left of a device is not there once it is whole."""
    each = pool[stock.of]
    return (stock.free if free else stock.slices * (not each.rest)) * each.parts


def _most(tier: TierStock, pool: Pool, spec: JobSpec) -> int:
    return max((_ranks(domain, pool, spec, free=False) for domain in tier.domains), default=0)


def _least(tier: TierStock, pool: Pool, spec: JobSpec) -> int | None:
    """The room of the fullest domain that holds the gang now."""
    rooms = (_ranks(domain, pool, spec, free=True) for domain in tier.domains)
    return min((room for room in rooms if room >= spec.ranks), default=None)


def _slices(whole: TierStock, pool: Pool, *, free: bool) -> int:
    return sum(
        _count(stock, pool, free=free) * stock.nodes * domain.count
        for domain in whole.domains
        for stock in domain.stock
        if stock.of in pool
    )


def _tier_rank(tier: TierStock, kinds: Sequence[str]) -> int:
    return 0 if tier.kind == "node" else kinds.index(tier.kind) + 1


def _height_of(wish: str, kinds: Sequence[str]) -> int:
    """The height of the preferred kind in this summary; 0, which only a node meets, if it has no such kind."""
    return next((kinds.index(word) + 1 for word in (wish, kind_of(wish)) if word in kinds), 0)


def _start_in(summary: CapacitySummary, spec: JobSpec, kind: str, free: int) -> int | None:
    """When ends of running jobs make room behind all who wait; None where their run times do not tell."""
    need = spec.devices + sum(summary.waiting.get(k, 0) for k in (kind, "any"))
    for release in sorted(summary.releases, key=lambda r: r.in_ns):
        if release.kind == kind:
            free += release.slices
            if free >= need:
                return release.in_ns
    return None


def _cost(summary: CapacitySummary, spec: JobSpec, pools: Sequence[Pool]) -> float | None:
    """The price of an hour on the cheapest devices that the job may use, where it is known: of a part what it counts."""
    known = summary.prices_per_device_hour
    prices = [
        known[model] * each.milli / 1000
        for pool in pools
        for code, each in pool.items()
        if (model := summary.classes[code].model) in known
    ]
    return min(prices) * spec.devices if prices else None
