"""What holds in every world: of gangs, devices, reasons and time."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.worlds import Run, S, World, canonical, fleet_of, held, ledger_rows, node, unsealed, worlds
from unidle.control.queries.describe import explain, reason_now
from unidle.control.replay.simulate import Arrival
from unidle.engine.sim.workload import SimJob
from unidle.fleet import Fleet
from unidle.jobs import JobSpec, Restart
from unidle.ledger.current import check_batches
from unidle.place.protocol import KINDS
from unidle.view.accounts import entries
from unidle.view.fold import fold
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source
from unidle.view.state import View

moments = st.frozensets(st.integers(1, 120), max_size=8)
few = settings(max_examples=60, deadline=None)


@few
@given(worlds())
def test_gang_is_never_half_placed(world: World) -> None:
    view = Run(world).to_the_end()
    kinds = {d.id: (d.kind, d.node) for d in world.fleet.devices()}
    for job in view.jobs.values():
        for attempt in job.attempts:
            assert [p.rank for p in attempt.places] == list(range(job.spec.ranks))
            slices = [s for p in attempt.places for s in p.slices]
            assert len(set(slices)) == job.spec.devices
            for place in attempt.places:
                assert len(place.slices) == job.spec.devices_per_rank
                assert {kinds[s][1] for s in place.slices} <= {place.node}
            used = {kinds[s][0] for s in slices}
            assert len(used) == (1 if job.spec.devices else 0)  # for CPUs alone on a fleet of GPUs
            assert used <= set(KINDS[job.spec.device])


@few
@given(worlds())
def test_no_device_is_held_by_two_attempts_at_once(world: World) -> None:
    by_slice: dict[str, list[tuple[int, int]]] = {}
    for piece, start, end, _ in held(Run(world).to_the_end()):
        by_slice.setdefault(piece, []).append((start, end))
    for spans in by_slice.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(sorted(spans)))


@few
@given(worlds())
def test_after_each_turn_every_waiting_job_has_a_reason_and_occupancy_is_what_attempts_hold(
    world: World,
) -> None:
    def look(view: View) -> None:
        for job in view.jobs.values():
            if not job.terminal:
                assert reason_now(job) is not None, job
                assert explain(view, job)["code"]
        taken = {s for job in view.live for p in view.jobs[job].attempts[-1].places for s in p.slices}
        down = view.unfit()
        for piece in world.fleet.slices():
            assert view.occupancy.is_free(piece.id) == (piece.id not in taken and piece.id not in down)

    Run(world, after_turn=look).to_the_end()


@few
@given(worlds())
def test_every_job_ends_hangs_or_can_never_start(world: World) -> None:
    view = Run(world).to_the_end()
    for job in view.jobs.values():
        if job.live is not None:
            assert any(rank.code == 0 for rank in job.live.ranks)
            assert job.spec.timeout_s is None
        elif not job.terminal:
            assert job.verdict.code == "never_fits" or (job.verdict.code == "no_fit" and view.live)


@few
@given(worlds(), st.integers(0, 10**11))
def test_postings_balance_at_any_time(world: World, later: int) -> None:
    run = Run(world)
    view = run.to_the_end()
    now = view.time_ns + later
    postings = entries(view, now)
    total: Counter[int] = Counter()
    corrected: Counter[tuple[int, int, int]] = Counter()
    for entry in postings:
        assert entry.start_ns < entry.end_ns
        for k in entry.slices:
            total[k] += entry.sign * (entry.end_ns - entry.start_ns)
            if entry.revision:
                corrected[k, entry.start_ns, entry.end_ns] += entry.sign
    assert not any(corrected.values())
    for k, ref in enumerate(view.book.slices):
        assert total[k] == now - ref.first_ns


@few
@given(worlds(), moments)
def test_rows_tile_every_slice_after_each_turn(world: World, snapshots: frozenset[int]) -> None:
    run = Run(world, snapshots=snapshots, seal_at=1)

    def look(view: View) -> None:
        source = ledger_source(run.store, view)
        assert check_batches(source.batches(source.extent())) == []

    run.after_turn = look
    view = run.to_the_end()
    by_slice: dict[str, list[tuple[int, int]]] = {}
    for row in ledger_rows(run.store, view):
        by_slice.setdefault(row.slice, []).append((row.start_ns, row.end_ns))
    for ref in view.book.slices:
        spans = by_slice.get(ref.id, [(ref.first_ns, view.time_ns)])
        assert spans[0][0] == ref.first_ns
        assert spans[-1][1] == view.time_ns
        assert all(end == start for (_, end), (start, _) in pairwise(spans))


@few
@given(worlds(), moments, moments)
def test_a_controller_that_dies_anywhere_changes_nothing(
    world: World, deaths: frozenset[int], snapshots: frozenset[int]
) -> None:
    calm, rough = Run(world), Run(world, deaths, snapshots)
    expected, view = calm.to_the_end(), rough.to_the_end()
    assert canonical(view) == canonical(expected)
    assert ledger_rows(rough.store, view) == ledger_rows(calm.store, expected)


@few
@given(worlds(), moments, moments)
def test_sealing_on_the_way_changes_no_row(
    world: World, deaths: frozenset[int], snapshots: frozenset[int]
) -> None:
    calm, rough = Run(world), Run(world, deaths, snapshots, seal_at=1)
    expected, view = calm.to_the_end(), rough.to_the_end()
    assert unsealed(view) == unsealed(expected)
    assert ledger_rows(rough.store, view) == ledger_rows(calm.store, expected)
    again = load_view(rough.store)
    assert canonical(again) == canonical(view)
    assert ledger_rows(rough.store, again) == ledger_rows(calm.store, expected)


@few
@given(worlds())
def test_the_same_world_gives_the_same_log(world: World) -> None:
    first, second = Run(world), Run(world)
    first.to_the_end()
    second.to_the_end()
    assert list(first.store.read()) == list(second.store.read())


def fleets_of(world: World) -> st.SearchStrategy[tuple[Fleet, ...]]:
    """The world's fleet without some of its nodes, or with one more."""
    nodes = (*world.fleet.nodes, node("extra", 2))
    some = st.lists(st.sampled_from(nodes), unique_by=lambda n: n.id).map(lambda n: Fleet(nodes=tuple(n)))
    return st.lists(some | st.just(world.fleet), max_size=3).map(tuple)


@few
@given(st.data(), worlds(), moments, moments)
def test_time_adds_up_whatever_the_fleet_and_however_long_nobody_was_there(
    data: st.DataObject, world: World, deaths: frozenset[int], snapshots: frozenset[int]
) -> None:
    run = Run(
        world, deaths, snapshots, seal_at=1, sighting_every_ns=5 * S,
        away_ns=data.draw(st.sampled_from([0, S, 40 * S])), fleets=data.draw(fleets_of(world)),
    )  # fmt: skip
    view = run.to_the_end()
    source = ledger_source(run.store, view)
    assert check_batches(source.batches(source.extent())) == []
    unsealed_view = fold(View(), run.store.read())
    source = ledger_source(run.store, unsealed_view)
    assert check_batches(source.batches(source.extent())) == []
    assert ledger_rows(run.store, view) == ledger_rows(run.store, unsealed_view)


EVENTFUL = World(
    fleet_of(2, 3),
    (
        Arrival(1, "steps", JobSpec(("train",), ranks=4, restart=Restart(3, 2.0), checkpoint_path="ckpt")),
        Arrival(1 + 2 * S, "waits", JobSpec(("train",), ranks=2, queue_timeout_s=60.0)),
        Arrival(1 + 3 * S, "cancelled", JobSpec(("train",), ranks=1)),
        Arrival(1 + 4 * S, "slow", JobSpec(("train",), ranks=1, timeout_s=8.0)),
        Arrival(1 + 5 * S, "huge", JobSpec(("train",), ranks=9)),
    ),
    {
        "steps": SimJob(20 * S, S, S, 4, {1: (2, 7 * S, -9), 2: (0, 9 * S, 1)}),
        "waits": SimJob(10 * S, S),
        "cancelled": SimJob(30 * S),
        "slow": SimJob(30 * S, S, S),
        "huge": SimJob(S),
    },
    cancels=((1 + 6 * S, "cancelled"),),
    faults=((1 + 12 * S, "n0", 1 + 15 * S),),
)


def test_a_controller_may_die_at_every_single_moment_of_an_eventful_life() -> None:
    calm = Run(EVENTFUL)
    expected = calm.to_the_end()
    assert {job.id: (job.state, len(job.attempts)) for job in expected.jobs.values()} == {
        "steps": ("succeeded", 3),
        "waits": ("failed", 1),
        "cancelled": ("cancelled", 1),
        "slow": ("failed", 1),
        "huge": ("queued", 0),
    }
    rows = ledger_rows(calm.store, expected)
    assert calm.fate.moment > 50
    for moment in range(1, calm.fate.moment + 1):
        rough = Run(EVENTFUL, frozenset({moment}))
        view = rough.to_the_end()
        assert canonical(view) == canonical(expected), moment
        assert ledger_rows(rough.store, view) == rows, moment
