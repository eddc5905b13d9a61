"""A view in few numbers: what each kind of network domain has free (``fleet.summary``). O(nodes x depth)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Final

from unidle.fleet import WHOLE_PPM, Device, LinkClass, Node, Sharing, slices_of
from unidle.fleet.network import CLASSES
from unidle.fleet.summary import (
    FLEET_KIND,
    CapacitySummary,
    DomainStock,
    MayCut,
    NodeClass,
    QueueRoom,
    Release,
    Stock,
    TierStock,
)
from unidle.jobs import NEVER
from unidle.place.network.tree import Tree, tree_of
from unidle.share.parts import promised, used_parts
from unidle.view.jobs import JobView
from unidle.view.occupancy import NodeSlots
from unidle.view.state import View

LABEL_VALUES_MOST: Final = 32  # a label with more different values tells nodes apart, not kinds of nodes
RELEASES_MOST: Final = 32
REST_STEPS: Final = 20  # what is left of a device counts in so many steps, rounded down, so that few differ
_Key = tuple[int, int, int]  # class, slices, free


def summary_of(view: View, now_ns: int) -> CapacitySummary:
    """What the cluster of this view has at ``now_ns``. Pure."""
    tree = tree_of(view.fleet)
    counting = _Counting(view, tree)
    waiting, pending = _waiting(view)
    return CapacitySummary(
        now_ns, tuple(counting.classes), tuple(counting.tiers()), tuple(_queues(view, now_ns)),
        tuple(_releases(view, now_ns)), waiting, pending, counting.fabrics(), counting.hidden,
        dict(view.fleet.prices_per_device_hour), view.fleet.currency,
    )  # fmt: skip


class _Counting:
    """Nodes by class, and the sums of every domain."""

    def __init__(self, view: View, tree: Tree) -> None:
        self._tree = tree
        self.hidden = _hidden(view.fleet.nodes)
        self._spares = view.spares
        self._codes: dict[str, int] = {}
        self.classes: list[NodeClass] = []
        slots: dict[str, list[NodeSlots]] = {}
        for nodes in view.occupancy.nodes.values():
            for found in nodes:
                slots.setdefault(found.node, []).append(found)
        self._stock = [
            self._of(node, slots.get(node.id, []))
            for node in (view.fleet.nodes[k] for k in tree.source.tolist())
        ]

    def _of(self, node: Node, slots: list[NodeSlots]) -> list[_Key]:
        free = {s for found in slots for bit, s in enumerate(found.slices) if found.free >> bit & 1}
        if node.id in self._spares:  # jobs that come from elsewhere do not get it
            free = set()
        labels = {key: value for key, value in node.labels.items() if key not in self.hidden}
        total: Counter[int] = Counter()
        left: Counter[int] = Counter()
        for device in node.devices:
            one = NodeClass(
                device.kind, device.vendor, device.model, device.memory_bytes, labels, node.taints
            )
            if device.sharing is not None or device.cut is not None:
                for found, is_free in _on_demand(one, device, free):
                    total[self._code(found)] += 1
                    left[self._code(found)] += is_free
                continue
            for piece in slices_of(device):
                code = self._code(replace(one, share_ppm=piece.share_ppm))
                total[code] += 1
                left[code] += piece.id in free
        return [(code, total[code], left[code]) for code in sorted(total)]

    def _code(self, found: NodeClass) -> int:
        key = repr(found)
        if key not in self._codes:
            self._codes[key] = len(self.classes)
            self.classes.append(found)
        return self._codes[key]

    def tiers(self) -> Iterator[TierStock]:
        """Kinds from the nodes upwards; the whole fleet last."""
        tree = self._tree
        height = {code: int(tree.height[tree.kind == code].max()) for code in range(1, len(tree.kinds))}
        for code in sorted(height, key=lambda code: (height[code], code)):
            vertices = [v for v in range(1, len(tree.tiers)) if tree.kind[v] == code]
            yield TierStock(tree.kinds[code], self._domains(vertices))
        yield TierStock(FLEET_KIND, self._domains([0]))

    def _domains(self, vertices: list[int]) -> tuple[DomainStock, ...]:
        alike: Counter[tuple[Stock, ...]] = Counter()
        for vertex in vertices:
            held: Counter[_Key] = Counter()
            for keys in self._stock[int(self._tree.lo[vertex]) : int(self._tree.hi[vertex])]:
                held.update(keys)
            alike[tuple(Stock(*key, count) for key, count in sorted(held.items()))] += 1
        return tuple(DomainStock(count, stock) for stock, count in alike.items() if stock)

    def fabrics(self) -> tuple[LinkClass, ...]:
        up = self._tree.node_up_bps
        return tuple(name for k, name in enumerate(CLASSES) if len(up) and bool(up[:, k].any()))


def _on_demand(one: NodeClass, device: Device, free: Container[str]) -> Iterator[tuple[NodeClass, bool]]:
    """A device that may be cut on demand: all of it, free or not, and what is left of it where it is in parts."""
    sharing = device.sharing or Sharing(())
    factor_ppm, memory = sharing.compute_ppm, device.memory_bytes * sharing.memory_ppm // WHOLE_PPM
    whole = replace(one, cut=MayCut(sharing.modes, factor_ppm, memory, factor_ppm))
    parts = used_parts(device)
    yield whole, not parts and slices_of(device)[0].id in free
    if device.cut is None or not parts or not any(piece.id in free for piece in slices_of(device)):
        return
    compute, held = promised(device)
    step = factor_ppm // REST_STEPS
    left = (factor_ppm - compute) // step * step
    if left > 0:
        bytes_ = max(memory - held, 0) * REST_STEPS // max(memory, 1) * memory // REST_STEPS
        yield replace(one, cut=MayCut((device.cut.mode,), left, bytes_, factor_ppm), rest=True), True


def _hidden(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    values: dict[str, set[str]] = {}
    for node in nodes:
        for key, value in node.labels.items():
            some = values.setdefault(key, set())
            if len(some) <= LABEL_VALUES_MOST:
                some.add(value)
    return tuple(sorted(key for key, some in values.items() if len(some) > LABEL_VALUES_MOST))


def _waiting(view: View) -> tuple[dict[str, int], dict[str, int]]:
    waiting: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    for shape, queue in view.waiting.items():
        devices = shape.ranks * shape.devices_per_rank
        for job in (view.jobs.open[name] for _, _, name in queue):
            if job.verdict is None or _not_seen(job):
                pending[shape.device] += devices
            elif job.verdict.code not in NEVER:  # nobody waits for what never comes
                waiting[shape.device] += devices
    return {k: n for k, n in waiting.items() if n}, {k: n for k, n in pending.items() if n}


def _not_seen(job: JobView) -> bool:
    return job.verdict is not None and job.verdict.code == "not_taken_up"


def _queues(view: View, now_ns: int) -> Iterator[QueueRoom]:
    """Leaves of the declared queues; what is free is the least along the way to the root."""
    if not view.fleet.queues:
        return
    from unidle.place.snapshot import snapshot_of

    snapshot = snapshot_of(view, now_ns)
    resources, tree = snapshot.tree.resources, snapshot.tree
    report = {share.queue: share for share in snapshot.shares.report()}
    for name, index in tree.index.items():
        if name not in report or tree.children[index]:
            continue
        path = [report[tree.name(at)] for at in tree.path(index) if tree.name(at) in report]
        free = {r: min(q.bound[k] - q.used[k] for q in path) for k, r in enumerate(resources)}
        bound = {r: min(q.bound[k] for q in path) for k, r in enumerate(resources)}
        yield QueueRoom(name, free, bound, report[name].waiting_jobs)


def _releases(view: View, now_ns: int) -> Iterator[Release]:
    """Expected ends of running jobs whose run time is known, in at most ``RELEASES_MOST`` steps a kind."""
    ends: dict[str, list[tuple[int, int]]] = {}
    for name in sorted(view.live):
        job = view.jobs[name]
        runs_ns = job.run_time_ns
        if not job.spec.is_filler and runs_ns is not None and job.live is not None and job.spec.needs_devices:
            slices = [s for place in job.live.places for s in place.slices]
            left_ns = max(runs_ns - job.run_ns(now_ns), 0)
            ends.setdefault(view.occupancy.kind_of(slices[0]), []).append((left_ns, len(slices)))
    for kind, found in ends.items():
        found.sort()
        step = -(-len(found) // RELEASES_MOST)
        for first in range(0, len(found), step):  # put off to the end of each step: late rather than early
            some = found[first : first + step]
            yield Release(some[-1][0], kind, sum(slices for _, slices in some))
