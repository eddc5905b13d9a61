"""Who holds devices and does nothing is told, then released; who works is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from unidle.ledger.columns import RowColumns, from_entries
from unidle.ledger.rows import Entry
from unidle.ledger.tables import JobInfo, SliceInfo
from unidle.ledger.taxonomy import GROUP_OF
from unidle.share.idle import (
    MINUTE_NS,
    Attempt,
    IdlePlan,
    IdlePolicy,
    Utilisation,
    decide_idle,
    quiet_holders,
)

M = MINUTE_NS
POLICY = IdlePolicy(after_ns=30 * M, start_ns=60 * M, notice_ns=15 * M)
SLICES = [SliceInfo(f"n/{k}", f"n/{k}", "n", 1_000_000, 0, 10**6 * M, "H100") for k in range(4)]
JOBS = [JobInfo("a", queue="night"), JobInfo("b", queue="day")]


def row(
    start: float,
    end: float,
    leaf: str,
    *,
    job: str = "a",
    slices: Sequence[int] = (0, 1),
    step: int = -1,
    how: str = "inferred",
    attempt: int = 1,
) -> Entry:
    return Entry(tuple(slices), int(start * M), int(end * M), leaf, job, attempt, step, how)  # type: ignore[arg-type]


def steps(start: int, end: int, job: str = "a", slices: Sequence[int] = (0, 1)) -> list[Entry]:
    """One step a minute."""
    return [row(t, t + 1, "useful", job=job, slices=slices, step=t) for t in range(start, end)]


def decide(
    entries: Sequence[Entry],
    now: float,
    *,
    told: Mapping[Attempt, int] | None = None,
    policy: IdlePolicy = POLICY,
    live: Mapping[str, int] | None = None,
    seen: Mapping[str, Utilisation] | None = None,
) -> IdlePlan:
    rows: RowColumns = from_entries(entries, SLICES, JOBS)
    return decide_idle(rows, live or {"a": 1}, told or {}, int(now * M), policy, seen)


A = Attempt("a", 1)
STOPPED = [
    row(0, 2, "start"),
    *steps(2, 10),
    row(10, 60, "useful"),
]  # after minute 10 the ledger only infers work


def test_one_whose_steps_stopped_is_told_when_the_time_is_up_and_not_before() -> None:
    early = decide(STOPPED, 39)
    assert (early.tell, early.again_ns) == ((), 40 * M)
    plan = decide(STOPPED, 40)
    assert [step.attempt for step in plan.tell] == [A]
    assert plan.tell[0].because.figures == {
        "quiet_ns": 30 * M, "slices": 2, "share_ppm": 2_000_000, "evidence": "steps",
    }  # fmt: skip
    assert "1.00 device-hours" in plan.tell[0].because.text
    assert plan.again_ns == 55 * M


def test_the_notice_runs_out_before_anything_is_released() -> None:
    told = {A: 40 * M}
    assert decide(STOPPED, 54, told=told) == IdlePlan(again_ns=55 * M)
    assert [s.because.code for s in decide(STOPPED, 55, told=told).release] == ["idle_released"]


def test_a_step_after_the_notice_makes_it_void() -> None:
    plan = decide([*STOPPED, row(60, 61, "useful", step=11)], 70, told={A: 40 * M})
    assert [s.because.code for s in plan.withdraw] == ["idle_over"]
    assert plan.release == ()


def test_one_rank_at_work_keeps_the_whole_gang() -> None:
    entries = [*steps(0, 100, slices=(0,)), row(0, 100, "start", slices=(1,))]
    assert decide(entries, 100) == IdlePlan(again_ns=130 * M)


def test_saving_and_evaluating_are_work_but_waiting_and_hanging_are_not() -> None:
    for leaf in ("checkpoint", "evaluation", "compile", "restore"):
        assert decide([*steps(0, 10), row(10, 60, leaf, how="measured")], 60).tell == ()
    for leaf in ("data_stall", "hang", "idle", "gang_wait", "start"):
        assert decide([*steps(0, 10), row(10, 60, leaf, how="measured")], 60).tell != ()


def test_one_that_never_showed_a_step_is_told_later_and_never_released_unwatched() -> None:
    silent = [row(0, 500, "start")]
    assert decide(silent, 59).tell == ()
    plan = decide(silent, 60)
    assert "may be at work" in plan.tell[0].because.text and plan.again_ns is None
    assert decide(silent, 500, told={A: 60 * M}) == IdlePlan()


def test_utilisation_is_evidence_both_ways() -> None:
    silent = [row(0, 500, "start")]
    unused = {name: Utilisation(499 * M, -1) for name in ("n/0", "n/1")}
    assert decide(silent, 100, told={A: 60 * M}, seen=unused).release != ()
    at_work = {**unused, "n/1": Utilisation(499 * M, 490 * M)}
    plan = decide(silent, 500, told={A: 60 * M}, seen=at_work)
    assert [s.because.code for s in plan.withdraw] == ["idle_over"]
    half_watched = {"n/0": unused["n/0"]}
    assert decide(silent, 100, told={A: 60 * M}, seen=half_watched).release == ()


def test_a_policy_may_only_tell_and_may_spare_queues() -> None:
    plan = decide(STOPPED, 500, told={A: 40 * M}, policy=IdlePolicy(release=False))
    assert plan == IdlePlan()
    assert decide(STOPPED, 500, policy=IdlePolicy(exempt_queues=frozenset({"night"}))) == IdlePlan()


def test_only_the_attempt_that_holds_slices_counts() -> None:
    entries = [*steps(0, 10), row(20, 30, "start", attempt=2), row(30, 31, "useful", step=11, attempt=2)]
    assert decide(entries, 60, live={"a": 2}).again_ns == 61 * M
    assert decide(entries, 60, live={"b": 1}) == IdlePlan()


def test_each_holder_is_judged_by_its_own_rows() -> None:
    entries = [*STOPPED, *steps(0, 60, job="b", slices=(2, 3))]
    plan = decide(entries, 60, live={"a": 1, "b": 1})
    assert [s.attempt.job for s in plan.tell] == ["a"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 100), st.integers(1, 20), st.sampled_from(sorted(GROUP_OF)), st.sampled_from(["a", "b"]),
            st.integers(0, 3), st.integers(-1, 3), st.sampled_from(["measured", "inferred"]), st.integers(1, 2),
        ),
        max_size=40,
    )
)  # fmt: skip
def test_the_last_sign_of_work_is_what_a_plain_loop_finds(
    drawn: list[tuple[int, int, str, str, int, int, str, int]],
) -> None:
    entries = [
        row(start, start + length, leaf, job=job, slices=(piece,), step=step, how=how, attempt=attempt)
        for start, length, leaf, job, piece, step, how, attempt in drawn
    ]
    live = {"a": 1, "b": 2}
    found = quiet_holders(from_entries(entries, SLICES, JOBS), live, POLICY, {})
    for job, number in live.items():
        mine = [e for e in entries if (e.job, e.attempt) == (job, number)]
        signs = [e.end_ns for e in mine if _is_sign(e)]
        holders = [h for h in found if h.attempt == Attempt(job, number)]
        if not mine:
            assert not holders
            continue
        (holder,) = holders
        assert holder.since_ns == max([min(e.start_ns for e in mine), *signs])
        assert holder.slices == tuple(sorted({f"n/{e.slices[0]}" for e in mine}))
        assert holder.worked == bool(signs)


def _is_sign(e: Entry) -> bool:
    if e.leaf in POLICY.busy_leaves:
        return True
    return GROUP_OF[e.leaf] in ("step", "serve", "fill") and (e.step >= 0 or e.how == "measured")
