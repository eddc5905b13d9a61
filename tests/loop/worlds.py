"""Worlds by chance for the whole loop: fleets with a tree, queues, gangs with wishes, failures, faults, cancels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from loop.drive import Loop
from loopcheck import Checker
from unidle.engine.sim.workload import S, SimJob
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Layout, Requests, Restart, Select, Topology, Where
from unidle.place.policy import Unidle
from unidle.place.protocol import Policy

START_NS = 1_000 * S
DAY_S = 86_400
EVER_S = 60 * DAY_S


@dataclass(frozen=True)
class Ask:
    """A job that comes at ``at_s``."""

    at_s: int
    job: str
    spec: JobSpec
    behaviour: SimJob

    def __repr__(self) -> str:
        """Only what is not usual: a world that fails has to be read by a person."""
        usual, idle = JobSpec(("train",)), SimJob(0)
        wants = {f: v for f in JobSpec.__slots__ if (v := getattr(self.spec, f)) != getattr(usual, f)}
        does = {f: v for f in SimJob.__slots__ if (v := getattr(self.behaviour, f)) != getattr(idle, f)}
        return f"Ask({self.at_s}, {self.job}, {wants}, {does})"


@dataclass(frozen=True)
class World:
    """Times in seconds from the start. ``faults`` are (from, node, until), ``kills`` those of controllers."""

    fleet: Fleet
    asks: tuple[Ask, ...]
    cancels: tuple[tuple[int, str], ...] = ()
    faults: tuple[tuple[int, str, int], ...] = ()
    kills: tuple[int, ...] = ()

    @property
    def last_s(self) -> int:
        """When the last thing happens from outside."""
        times = (
            [ask.at_s for ask in self.asks]
            + [at for at, _ in self.cancels]
            + [until for _, _, until in self.faults]
        )
        return max([*times, *self.kills])


def live(world: World, policy: Callable[[], Policy] = Unidle, checker: Checker | None = None) -> Loop:
    """Drive the world until all jobs are over, or nothing will ever happen; every event was checked."""
    faults = [(START_NS + a * S, node, START_NS + b * S) for a, node, b in world.faults]
    loop = Loop(
        world.fleet, {ask.job: ask.behaviour for ask in world.asks}, START_NS, faults,
        policy=policy, checker=checker or Checker(),
    )  # fmt: skip
    submitted = {ask.job: ask.at_s for ask in world.asks}
    steps: list[tuple[int, int, Callable[[], None]]] = [
        (a.at_s, 0, lambda a=a: loop.controller.submit(a.job, a.spec))
        for a in world.asks  # type: ignore[misc]
    ]
    steps += [
        (max(at, submitted[j]), 1, lambda j=j: loop.controller.cancel(j, "ann")) for at, j in world.cancels
    ]  # type: ignore[misc]
    steps += [(at, 2, loop.take_up) for at in world.kills]
    for at_s, kind, do in sorted(steps, key=lambda step: step[:2]):
        at_ns = START_NS + at_s * S
        if loop.now_ns < at_ns or kind == 2:  # what was asked of a controller that dies is written by then
            loop.to(at_ns)
        do()
    loop.to_the_end(START_NS + EVER_S * S)
    return loop


# -- by chance ---------------------------------------------------------------------------------------


@st.composite
def fleets(draw: st.DrawFn, queues: tuple[QueueSpec, ...] = ()) -> Fleet:
    """One to three leaves under a spine, one to three nodes each, two to four GPUs a node; CPU and memory now and then."""
    tiers = [Tier("spine", "spine")]
    nodes: list[Node] = []
    for leaf in range(draw(st.integers(1, 3))):
        tiers.append(Tier(f"leaf{leaf}", "leaf", "spine"))
        for _ in range(draw(st.integers(1, 3))):
            name = f"n{len(nodes)}"
            model = draw(st.sampled_from(["H100", "H100", "A100"]))
            count = draw(st.sampled_from([2, 4, 4]))
            devices = tuple(Device(f"{name}/{k}", name, k, "gpu", model) for k in range(count))
            cpus = draw(st.sampled_from([0.0, 0.0, 8.0]))
            taints = ("spot",) if draw(st.integers(0, 5)) == 0 else ()
            nodes.append(Node(name, f"leaf{leaf}", devices, cpus, taints=taints))
    return Fleet(tuple(tiers), tuple(nodes), queues=queues)


@st.composite
def queue_trees(draw: st.DrawFn) -> tuple[QueueSpec, ...]:
    """Two departments, one with two teams; guarantees small enough for the smallest fleet."""
    given: list[QueueSpec] = []
    for name, parent in (("a", None), ("b", None), ("b1", "b"), ("b2", "b")):
        guarantee = {"gpu": 1.0} if draw(st.booleans()) and name in ("a", "b1") else {}
        deserved = {"gpu": float(draw(st.integers(1, 2)))} if name == "a" and draw(st.booleans()) else {}
        limit = {"gpu": float(draw(st.integers(2, 6)))} if draw(st.integers(0, 3)) == 0 and parent else {}
        deserved = {k: max(v, guarantee.get(k, 0)) for k, v in deserved.items()}
        given.append(
            QueueSpec(
                name, parent, draw(st.integers(1, 3)), guarantee=guarantee, deserved=deserved, limit=limit
            )
        )
    return tuple(given)


LEVELS = ("low", "low", "medium", "high")


@st.composite
def specs(draw: st.DrawFn, queues: tuple[QueueSpec, ...], *, ranked: bool, fails: bool) -> JobSpec:
    leaves = [q.name for q in queues if all(other.parent != q.name for other in queues)] or ["default"]
    layout, ranks = None, draw(st.integers(1, 6))
    groups: dict[str, str] = {}
    if draw(st.integers(0, 3)) == 0:
        layout = Layout(draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2)))
        ranks = layout.tp * layout.dp * layout.pp
        groups = {"tp": "node"} if draw(st.booleans()) else {"dp": "leaf"}
    require = draw(st.sampled_from([None, None, "leaf", "node"]))
    topology = Topology(require, draw(st.sampled_from([None, "leaf"])), groups) if require or groups else None
    return JobSpec(
        ("train",), ranks=ranks, devices_per_rank=draw(st.sampled_from([1, 1, 1, 2])), device="gpu",
        queue=draw(st.sampled_from(leaves)), priority=draw(st.integers(0, 2)), layout=layout, topology=topology,
        preemption=draw(st.sampled_from(LEVELS)) if ranked else "medium",
        min_runtime_s=draw(st.sampled_from([0.0, 0.0, 60.0])) if ranked else 0.0,
        estimate_s=draw(st.sampled_from([None, 30.0, 120.0])) if ranked else None,
        requests=Requests(cpus=draw(st.sampled_from([0.0, 0.0, 0.0, 2.0]))),
        where=Where(Select(include=draw(st.sampled_from([(), (), ("H100",)]))), tolerate=draw(st.sampled_from([(), ("spot",)]))),
        restart=Restart(10 if fails else 50, draw(st.sampled_from([0.0, 5.0]))), checkpoint_path=draw(st.sampled_from([None, "ckpt"])),
        grace_s=draw(st.sampled_from([0.0, 10.0])),
    )  # fmt: skip


@st.composite
def behaviours(draw: st.DrawFn, *, fails: bool) -> SimJob:
    attempts = draw(st.sets(st.integers(1, 3), max_size=2)) if fails else set()
    return SimJob(
        work_ns=draw(st.integers(1, 200)) * S,
        startup_ns=draw(st.sampled_from([0, 2 * S])),
        step_ns=draw(st.sampled_from([0, S, 5 * S])),
        checkpoint_every=draw(st.sampled_from([0, 2, 10])),
        fails={k: (draw(st.integers(0, 5)), draw(st.integers(0, 100)) * S, -9) for k in sorted(attempts)}
        or None,
        stop_ns=draw(st.sampled_from([0, 3 * S, 20 * S])),
        report_every=0,
        saves_on_stop=draw(st.booleans()),
    )


@st.composite
def worlds(
    draw: st.DrawFn, *, queues: bool | None = None, ranked: bool = True, faults: bool = True, most: int = 10
) -> World:
    """``ranked``: with levels and run times; ``faults``: ranks and nodes fail, jobs are cancelled, controllers die."""
    tree = draw(queue_trees()) if (draw(st.booleans()) if queues is None else queues) else ()
    fleet = draw(fleets(tree))
    times = st.integers(0, 300)
    asks = tuple(
        Ask(
            draw(times),
            f"j{k}",
            draw(specs(tree, ranked=ranked, fails=faults)),
            draw(behaviours(fails=faults)),
        )
        for k in range(draw(st.integers(1, most)))
    )
    if not faults:
        return World(fleet, asks)
    broken = [
        (at, draw(st.sampled_from(fleet.nodes)).id, at + draw(st.integers(1, 200)))
        for at in draw(st.lists(times, max_size=3))
    ]
    cancels = draw(st.lists(st.tuples(times, st.sampled_from([ask.job for ask in asks])), max_size=2))
    kills = draw(st.lists(times, max_size=2))
    return World(fleet, asks, tuple(cancels), tuple(broken), tuple(sorted(kills)))


@st.composite
def crowded(draw: st.DrawFn, *, faults: bool = False) -> World:
    """Low jobs fill a small fleet at once; later others come that may stop them, and more low ones behind."""
    tree = draw(st.sampled_from([(), HALVES, HALVES, NESTED]))
    nodes = tuple(
        Node(f"n{k}", f"leaf{k % 2}", tuple(Device(f"n{k}/{i}", f"n{k}", i, "gpu", "H100") for i in range(4)))
        for k in range(draw(st.integers(1, 3)))
    )
    tiers = (Tier("spine", "spine"), Tier("leaf0", "leaf", "spine"), Tier("leaf1", "leaf", "spine"))
    leaves = [q.name for q in tree if all(other.parent != q.name for other in tree)] or ["default"]
    asks = []
    for k in range(draw(st.integers(4, 14))):
        first = k < 8 and draw(st.integers(0, 3)) > 0
        spec = draw(specs(tree, ranked=True, fails=True))
        spec = replace(
            spec, ranks=min(spec.ranks, 4), layout=None, topology=draw(st.sampled_from([None, None, Topology("leaf")])),
            devices_per_rank=1, requests=Requests(), where=Where(), preemption="low" if first else draw(st.sampled_from(LEVELS)),
            queue=leaves[-1] if first else draw(st.sampled_from(leaves)),
        )  # fmt: skip
        works = replace(draw(behaviours(fails=faults)), work_ns=draw(st.integers(50, 2000)) * S)
        if draw(st.integers(0, 3)) == 0:  # longer than anything is held
            spec, works = replace(spec, grace_s=1000.0), replace(works, stop_ns=900 * S)
        asks.append(Ask(draw(st.integers(0, 5) if first else st.integers(6, 400)), f"j{k}", spec, works))
    broken = draw(
        st.lists(
            st.tuples(st.integers(0, 500), st.sampled_from(nodes), st.integers(1, 200)), max_size=2 * faults
        )
    )
    cancels = draw(st.lists(st.tuples(st.integers(0, 500), st.sampled_from(asks)), max_size=2 * faults))
    return World(
        Fleet(tiers, nodes, queues=tree), tuple(asks), tuple((at, ask.job) for at, ask in cancels),
        tuple((at, node.id, at + away) for at, node, away in broken),
        tuple(sorted(draw(st.lists(st.integers(0, 500), max_size=2 * faults)))),
    )  # fmt: skip


HALVES = (QueueSpec("a", deserved={"gpu": 2.0}), QueueSpec("b", deserved={"gpu": 2.0}))
NESTED = (
    QueueSpec("a", weight=2), QueueSpec("a1", "a", guarantee={"gpu": 1.0}), QueueSpec("a2", "a"), QueueSpec("b", limit={"gpu": 10.0}),
)  # fmt: skip
