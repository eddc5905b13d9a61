"""Where gangs go on after failures, in the real loop on the simulated engine."""

from __future__ import annotations

from place.test_place_quotas import Twice
from unidle.control.simulate import Arrival, simulate
from unidle.engine.sim.workload import S, SimJob
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, Layout, Restart, Topology
from unidle.store.memory import MemoryStore
from unidle.view.state import View


def leaves(*sizes: int, gpus: int = 4) -> Fleet:
    """Leaves ``a``, ``b``, ... with so many nodes ``a0``, ``a1``, ... each, below one spine."""
    names = "abcdefgh"[: len(sizes)]
    tiers = (Tier("s", "spine"), *(Tier(name, "leaf", "s") for name in names))
    nodes = tuple(
        Node(f"{leaf}{k}", leaf, tuple(Device(f"{leaf}{k}/{i}", f"{leaf}{k}", i, "gpu") for i in range(gpus)))
        for leaf, size in zip(names, sizes, strict=True)
        for k in range(size)
    )
    return Fleet(tiers, nodes)


def gang(name: str, ranks: int, at_s: float = 0, work_s: float = 1000, fails=None, **more) -> tuple[Arrival, SimJob]:
    spec = JobSpec(("x",), name=name, ranks=ranks, device="gpu", restart=Restart(5, 1.0), **more)
    return Arrival(1 + int(at_s * S), name, spec), SimJob(int(work_s * S), step_ns=S, checkpoint_every=10, fails=fails)


def run(there: Fleet, *jobs: tuple[Arrival, SimJob], faults=()) -> View:
    behaviour = {arrival.job: sim for arrival, sim in jobs}
    down = [(1 + int(at_s * S), node, 1 + int(up_s * S)) for at_s, node, up_s in faults]
    return simulate(
        MemoryStore(), there, [arrival for arrival, _ in jobs], lambda command: behaviour[command.job], Twice(),
        faults=down,
    )  # fmt: skip


def nodes(view: View, job: str, attempt: int = -1) -> list[str]:
    return [place.node for place in view.jobs[job].attempts[attempt].places]


def test_survivors_stay_and_the_lost_ranks_go_to_the_spare_of_their_leaf():
    view = run(leaves(3, 5), gang("g", 8), faults=[(50, "a1", 10_000)])
    assert nodes(view, "g", 0) == ["a0"] * 4 + ["a1"] * 4
    assert nodes(view, "g", 1) == ["a0"] * 4 + ["a2"] * 4
    again = view.jobs["g"].attempts[1].because
    assert again.code == "repair"
    assert (again.figures["stay"], again.figures["moved"], again.figures["within"]) == (4, 4, "leaf")
    assert "4 of 8 ranks stay, 4 move within leaf a (a1 down)" in again.text
