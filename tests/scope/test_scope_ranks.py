"""Who is late, and why: worlds of gangs that the rule was not written with."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope.gangs import MS, Gang, pipeline, sampled, steady, with_late
from unidle.scope.model import Process, Profile, Span
from unidle.scope.rank_views import Overlap, compare, is_collective, length, own_line, union, views
from unidle.scope.ranks import judge, step_times

SIZES = st.one_of(st.sampled_from([2, 3, 4]), st.integers(2, 24))


@st.composite
def gangs(draw: st.DrawFn) -> tuple[Gang, int, float]:
    """A gang with one late rank; its number and how late it is, in ms of a step."""
    ranks = draw(SIZES)
    late = draw(st.integers(0, ranks - 1))
    base = draw(st.floats(5, 400))
    late_ms = base * draw(st.floats(0.2, 2.0))
    collectives = draw(st.integers(1, 5))
    seed = draw(st.integers(0, 10**6))
    work = with_late(
        steady(seed, base, draw(st.floats(0.001, 0.05)), collectives),
        late,
        late_ms,
        chance=draw(st.sampled_from([1.0, 0.5])),
        at=draw(st.integers(0, 4)),
        seed=seed,
    )
    off = random.Random(seed)
    clocks = [off.uniform(-1e9, 1e9) for _ in range(ranks)]
    drifts = [off.uniform(-1e-4, 1e-4) for _ in range(ranks)]
    gang = Gang(
        ranks,
        work,
        # what is late is at least a twentieth of a step: less is noise by design
        transfer_ms=draw(st.floats(0.05, min(20, 4 * late_ms / collectives))),
        behind=draw(st.booleans()),
        clock_ms=clocks.__getitem__,
        drift=drifts.__getitem__,
    )
    return gang, late, late_ms


@given(gangs())
@settings(max_examples=60)
def test_the_late_rank_is_named_whatever_the_gang_and_its_clocks(world: tuple[Gang, int, float]) -> None:
    gang, late, _ = world
    found = compare(gang.profile())
    assert found.verdict == "late", found.text
    assert found.late == (late,), found.text
    assert f"rank {late} is a straggler" in found.text


@given(gangs())
@settings(max_examples=60)
def test_no_rank_is_said_to_be_later_than_a_step_and_shares_stay_shares(
    world: tuple[Gang, int, float],
) -> None:
    found = compare(world[0].profile())
    assert found.steps is not None
    for blame in found.ranks:
        assert 0 <= blame.wait_pct <= 100
        assert 0 <= blame.confidence < 1
        assert blame.late_ms is not None
        assert abs(blame.late_ms) <= found.steps.mean_ms * 1.01


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("ranks", [2, 8, 512])
def test_lateness_is_told_in_ms_of_a_step(ranks: int, behind: bool) -> None:
    work = with_late(steady(3, 50, 0.02, 3), ranks - 1, 10.0)
    blame = compare(Gang(ranks, work, behind=behind).profile()).ranks[-1]
    assert blame.is_late
    assert blame.late_ms == pytest.approx(10, abs=1.5)


def test_of_two_late_ranks_both_are_named_the_later_one_first() -> None:
    work = with_late(with_late(steady(4, 60, 0.01), 2, 20), 5, 30)
    found = compare(Gang(8, work).profile())
    assert found.late == (5, 2)
    assert "rank 5 (and 1 more) is a straggler" in found.text


def test_ranks_late_at_different_collectives_are_both_named() -> None:
    work = with_late(with_late(steady(5, 60, 0.01, 2), 1, 15, at=0), 6, 15, at=1)
    assert set(compare(Gang(8, work).profile()).late) == {1, 6}


@given(SIZES, st.integers(0, 10**6), st.floats(0.001, 0.2), st.booleans())
@settings(max_examples=80)
def test_an_even_gang_seldom_blames_anybody(ranks: int, seed: int, jitter: float, behind: bool) -> None:
    """Chance may make one rank really slower for the time of a look: then it is by little, and that is what is said."""
    found = compare(Gang(ranks, steady(seed, 40, jitter, 2), behind=behind).profile())
    assert found.verdict in ("even", "late")
    assert all(b.late_pct < 100 * jitter for b in found.ranks if b.is_late)


def test_of_a_hundred_even_gangs_at_most_a_few_blame_a_rank() -> None:
    blamed = sum(compare(Gang(8, steady(seed, 40, 0.1)).profile()).verdict == "late" for seed in range(100))
    assert blamed <= 8


def test_ranks_that_differ_from_each_other_all_alike_blame_nobody() -> None:
    """Half of them have a little less to do than the other half, in even steps from first to last."""

    def work(rank: int, step: int) -> list[float]:
        return [40 + 0.6 * rank + random.Random(f"{rank}/{step}").random()]

    assert compare(Gang(16, work).profile()).verdict == "even"


def test_stages_of_a_pipeline_are_not_blamed_for_its_bubble() -> None:
    for work in ([5, 5, 5, 5], [5, 5, 9, 5], [3, 6]):
        found = compare(pipeline(len(work), 6, work))
        assert found.verdict == "cannot tell"
        assert "pipeline" in found.text
        assert found.late == ()


@pytest.mark.parametrize(
    ("begins", "waits"),
    [
        ("c10d::ProcessGroupGloo::send", "c10d::ProcessGroupGloo::RecvWork::wait"),
        ("c10d::ProcessGroupNCCL::recv", "c10d::ProcessGroupNCCL::WorkNCCL::wait"),
        ("ncclSend", "ncclGroupEnd"),
        ("c10d::ProcessGroupGloo::recvAnysource", "c10d::Work::wait"),
    ],
)
def test_sends_and_receives_are_known_by_all_their_names(begins: str, waits: str) -> None:
    made = Gang(2, with_late(steady(1, 30, 0.01), 0, 10), name=waits).profile()
    calls = tuple(Span(s.pid, s.tid, begins, "collective", s.start_ns, s.start_ns + 1000) for s in made.spans)
    found = compare(Profile("T0", 0, made.end_ns, spans=(*made.spans, *calls), processes=made.processes))
    assert found.verdict == "cannot tell", found.text


def test_with_peers_told_the_late_one_of_several_pipelines_is_named() -> None:
    """Stage 1 of the second pipeline takes longer than stage 1 of the others."""
    spans: list[Span] = []
    for copy in range(4):
        part = pipeline(2, 6, [5, 5 + 0.02 * copy])
        waits = [s for s in part.spans if s.kind == "collective"]
        rest = [s for s in part.spans if s.kind != "collective"]
        if copy == 1:  # its own work fills half of what the others wait
            waits = [_halved(s) if s.pid == 1010 else s for s in waits]
        spans += [_moved(s, copy) for s in waits + rest]
    processes = tuple(Process(1000 + 10 * r, "pipe.py", rank=r) for r in range(8))
    profile = Profile("T0", 0, max(s.end_ns for s in spans), spans=tuple(spans), processes=processes)
    assert compare(profile).verdict == "cannot tell"
    found = compare(profile, peers={r: r % 2 for r in range(8)})
    assert found.late == (3,), found.text


def _moved(span: Span, copy: int) -> Span:
    pid = span.pid + 20 * copy
    return Span(pid, pid, span.name, span.kind, span.start_ns, span.end_ns)


def _halved(span: Span) -> Span:
    return Span(span.pid, span.tid, span.name, span.kind, (span.start_ns + span.end_ns) // 2, span.end_ns)


def test_ranks_that_do_not_step_together_are_not_compared() -> None:
    slow, fast = Gang(2, steady(1, 40, 0.01)).profile(), Gang(2, steady(1, 10, 0.01), steps=240).profile()
    spans = [s for s in slow.spans if s.pid == 1000] + [s for s in fast.spans if s.pid == 1010]
    profile = Profile("T0", 0, slow.end_ns, spans=tuple(spans), processes=slow.processes)
    found = compare(profile)
    assert found.verdict == "cannot tell"
    assert "step together" in found.text


def test_one_rank_or_no_collective_is_no_comparison() -> None:
    one = Gang(2, steady(1, 40, 0.01)).profile()
    alone = Profile(
        "T0", 0, one.end_ns, spans=tuple(s for s in one.spans if s.pid == 1000), processes=one.processes[:1]
    )
    assert compare(alone).verdict == "cannot tell"
    quiet = tuple(s for s in one.spans if s.kind == "backward")
    found = compare(Profile("T0", 0, one.end_ns, spans=quiet, processes=one.processes))
    assert found.verdict == "cannot tell"
    assert "no collective" in found.text
    assert compare(Profile("T0", 0, 1)).verdict == "cannot tell"


def test_by_samples_the_rank_that_waits_least_is_late_and_its_line_is_named() -> None:
    found = compare(sampled([(70, 5, 25), (70, 5, 25), (70, 25, 5), (69, 5, 26)]))
    assert found.late == (2,)
    (cause,) = found.ranks[2].causes
    assert cause.line == "train.py:12 augment"
    assert found.measure == "samples"
    assert found.ranks[2].late_ms is None


def test_few_samples_are_no_proof() -> None:
    assert compare(sampled([(75, 5, 20), (77, 5, 18)], seconds=2)).verdict == "even"


def test_the_budget_says_why_a_rank_is_late() -> None:
    profile = Gang(4, with_late(steady(8, 50, 0.01), 3, 10)).profile()
    usual = {"compute": 90.0, "python": 2.0, "collective": 8.0}
    late = {"compute": 73.0, "python": 2.0, "data": 23.0, "collective": 2.0}
    found = compare(profile, budgets={1000: usual, 1010: usual, 1020: usual, 1030: late})
    assert [c.what for c in found.ranks[3].causes] == ["data"]
    assert found.ranks[3].causes[0].more_ms == pytest.approx(0.23 * 61.5, abs=1)
    assert "data +" in found.text


def test_a_rank_that_hangs_is_named_though_no_call_ended() -> None:
    """The others wait in a collective that never ends, so that no span of it is there."""
    shares = [(2, 0, 98), (2, 0, 98), (2, 98, 0), (2, 0, 98)]
    profile = sampled(shares)
    started = tuple(
        Span(1000 + 10 * r, 1000 + 10 * r, "c10d::allreduce", "collective", 0, MS) for r in range(4)
    )
    budgets = {
        1000 + 10 * r: {"compute": c, "python": p, "collective": w} for r, (c, p, w) in enumerate(shares)
    }
    profile = Profile(
        "T0",
        0,
        profile.end_ns,
        profile.frames,
        profile.stacks,
        profile.samples,
        (),
        profile.processes,
        (),
        started,
    )
    for told in (budgets, None):
        found = compare(profile, budgets=told)
        assert found.late == (2,), found.text
        assert "train.py:12 augment" in found.text


def test_waits_that_are_no_calls_are_known_from_stacks() -> None:
    """Calls only begin the collectives; the training thread waits for them in a function that is none of them."""
    profile = sampled([(80, 0, 20), (90, 5, 5)], seconds=6)
    spans = [
        Span(1000 + 10 * r, 1000 + 10 * r, "c10d::allreduce", "collective", at, at + MS // 4)
        for r in range(2)
        for at in range(0, profile.end_ns, 60 * MS)
    ]
    found = compare(replace(profile, spans=tuple(spans)))
    assert (found.measure, found.late) == ("samples", (1,)), found.text


def test_processes_that_say_no_rank_are_numbered_by_their_collectives() -> None:
    made = Gang(3, with_late(steady(1, 30, 0.01), 1, 9)).profile()
    anonymous = tuple(Process(p.pid, p.command) for p in (*made.processes, Process(1, "torchrun")))
    found = compare(Profile("T0", 0, made.end_ns, spans=made.spans, processes=anonymous))
    assert [b.rank for b in found.ranks] == [0, 1, 2]
    assert found.late == (1,)


def test_views_of_several_nodes_are_judged_together() -> None:
    made = Gang(4, with_late(steady(2, 30, 0.01), 2, 9), clock_ms=lambda r: 1e6 * r).profile()
    nodes = []
    for node in range(2):
        of_node = made.processes[2 * node : 2 * node + 2]
        spans = tuple(s for s in made.spans if s.pid in {p.pid for p in of_node})
        start, end = min(s.start_ns for s in spans), max(s.end_ns for s in spans)
        nodes += views(Profile("T0", start, end, spans=spans, processes=of_node))
    assert judge(nodes).late == (2,)


def test_steps_told_by_the_caller_count_instead_of_backward_passes() -> None:
    profile = Gang(2, steady(1, 20, 0.01), steps=40).profile()
    starts = {
        pid: sorted(s.start_ns for s in profile.spans if s.pid == pid and s.kind == "backward")
        for pid in (1000, 1010)
    }
    found = compare(profile, steps={pid: marks[::4] for pid, marks in starts.items()})
    assert found.steps is not None
    assert found.steps.count == 2 * 9
    assert found.steps.p50_ms == pytest.approx(4 * 21.5, rel=0.1)


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=200))
def test_step_times_are_in_order(durations: list[int]) -> None:
    found = step_times(durations)
    assert found is not None
    assert found.count == len(durations)
    assert (
        min(durations) / 1e6
        <= found.p50_ms
        <= found.p90_ms
        <= found.p99_ms
        <= max(durations) / 1e6 * (1 + 1e-9)
    )


def test_no_steps_have_no_times() -> None:
    assert step_times([]) is None


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30),
    st.integers(0, 80),
    st.integers(0, 80),
)
def test_overlap_counts_each_moment_once(pieces: list[tuple[int, int]], a: int, b: int) -> None:
    spans = [(start, start + more) for start, more in pieces]
    low, high = min(a, b), max(a, b)
    covered = {t for start, end in spans for t in range(start, end)}
    joined = union(spans)
    assert length(joined) == len(covered)
    assert Overlap(joined).between(low, high) == len([t for t in covered if low <= t < high])


def test_the_deepest_line_of_ones_own_code_is_named() -> None:
    profile = sampled([(50, 30, 20)])
    assert own_line(profile.stack(0)) == "train.py:40 main"
    assert own_line(profile.stack(1)) == "train.py:12 augment"
    assert [is_collective(profile.stack(k)) for k in range(3)] == [False, False, True]


def test_the_json_of_ranks_names_lateness_and_causes() -> None:
    rows = compare(Gang(2, with_late(steady(9, 30, 0.01), 0, 10)).profile()).to_json()
    assert [row["rank"] for row in rows] == [0, 1]
    assert rows[0]["late"] is True
    assert rows[1]["late"] is False
