"""The two sides of the ledger together: what a simulated fleet's fold posts, read and checked."""

import io

import pytest

from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import seeded
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, Restart
from unidle.ledger.current import check_batches
from unidle.ledger.export import write_jsonl
from unidle.ledger.query import summary
from unidle.place.policy import FirstFit
from unidle.store.memory import MemoryStore
from unidle.store.protocol import Lease
from unidle.view import source as view_source

S = 1_000_000_000


def fleet() -> Fleet:
    shares = {0: (333_333, 666_667)}
    return Fleet(
        nodes=tuple(
            Node(
                name,
                "",
                tuple(
                    Device(f"{name}/{k}", name, k, "gpu", "H100", slices_ppm=shares.get(k, (1_000_000,)))
                    for k in range(8)
                ),
            )
            for name in ("n0", "n1", "n2")
        ),
        prices_per_device_hour={"H100": 2.5},
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_fleet_with_faults_and_failures_is_accounted_for_to_the_nanosecond(seed):
    store = MemoryStore()
    specs = [JobSpec(("x",), ranks=(1, 2, 4, 8, 16)[k % 5], restart=Restart(3)) for k in range(15)]
    arrivals = [Arrival(1 + 20 * S * k, f"job-{k}", spec) for k, spec in enumerate(specs)]
    workload = seeded(
        seed, mean_work_s=120, step_s=3, checkpoint_every=(0, 5, 20)[seed % 3], failures_per_rank_hour=8
    )
    faults = [(100 * S, "n0", 300 * S), (200 * S, "n1", 220 * S)]
    view = simulate(store, fleet(), arrivals, workload, FirstFit(), faults=faults)

    source = view_source.ledger_source(store, view)
    before, lines = summary(source, None, ["job", "leaf"]), sorted(jsonl(source))
    assert check_batches(source.batches(source.extent())) == []
    leaves = {t.leaf for t in before.leaves}
    assert {"useful", "replayed", "fault", "start"} <= leaves and before.slices == 27

    view_source.save_snapshot(store, Lease(1, "simulate"), view, seal_at=1)  # which still holds the store
    sealed = view_source.ledger_source(store, view)
    assert sum(s.rows for s in store.segments(view_source.FOLD_VERSION)) > 0
    assert check_batches(sealed.batches(sealed.extent())) == []
    assert summary(sealed, None, ["job", "leaf"]) == before
    assert sorted(jsonl(sealed)) == lines


def jsonl(source) -> list[bytes]:
    out = io.BytesIO()
    write_jsonl(source, out)
    return out.getvalue().splitlines()
