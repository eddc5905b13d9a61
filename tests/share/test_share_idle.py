"""Who holds devices and does nothing is told, then released; who works is left alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from unidle.fleet.policies import MINUTE_NS, IdlePolicy, IdleTerms
from unidle.share.idle import (
    ActiveNotice,
    AttemptId,
    Evidence,
    IdleHolder,
    IdlePlan,
    decide_idle,
    measure_every_ns,
)

M = MINUTE_NS
TERMS = IdleTerms(after_ns=30 * M, start_ns=60 * M, notice_ns=15 * M, release=True)
A = AttemptId("a", 1)


def holder(
    quiet: float,
    *,
    now: float = 1000,
    worked: bool = True,
    evidence: Evidence | None = "utilisation",
    notice: ActiveNotice | None = None,
) -> IdleHolder:
    """Two whole devices, quiet for so many minutes."""
    since = int((now - quiet) * M)
    return IdleHolder(A, "day", since, int(quiet * M), since if worked else 0, 2, 2_000_000, evidence, notice)


def decide(found: IdleHolder, terms: IdleTerms | None = TERMS, now: float = 1000) -> IdlePlan:
    return decide_idle(found, terms, int(now * M))


def told(passed: float, since: float = 970, notice: float = 15) -> ActiveNotice:
    return ActiveNotice(int(since * M), int(notice * M), int(passed * M))


def test_one_whose_steps_stopped_is_told_when_the_time_is_up_and_not_before() -> None:
    early = decide(holder(29))
    assert (early.step, early.again_ns) == (None, 1001 * M)
    plan = decide(holder(30))
    assert (plan.step, plan.notice_ns, plan.again_ns) == ("tell", 15 * M, 1015 * M)
    assert plan.because is not None
    assert plan.because.figures == {
        "since_ns": 970 * M, "quiet_ns": 30 * M, "slices": 2, "share_ppm": 2_000_000, "evidence": "utilisation",
    }  # fmt: skip
    assert "holds 2 devices, 30 min without a step or utilisation (1 device-hour)" in plan.because.text


def test_one_that_never_worked_has_longer_and_is_measured_from_the_beginning() -> None:
    fresh = holder(2, worked=False, evidence=None)
    assert decide(fresh).watch
    assert decide(holder(59, worked=False)).step is None
    assert decide(holder(60, worked=False)).step == "tell"
    assert not decide(holder(0.5, worked=False, evidence=None)).watch


def test_one_that_shows_steps_is_not_measured_at_all() -> None:
    plan = decide(holder(14, evidence=None))
    assert (plan.watch, plan.again_ns) == (False, 1001 * M)
    assert decide(holder(15, evidence=None)).watch


def test_nobody_is_told_before_it_was_measured() -> None:
    assert decide(holder(500, evidence=None)) == IdlePlan(watch=True)


def test_the_notice_runs_out_before_anything_is_released() -> None:
    plan = decide(holder(44, notice=told(14)))
    assert (plan.step, plan.again_ns) == (None, 1001 * M)
    plan = decide(holder(45, notice=told(15)))
    assert plan.step == "release"
    assert plan.because is not None
    assert plan.because.code == "idle_released"


def test_what_nobody_measures_now_is_not_released_whatever_the_notice_said() -> None:
    assert decide(holder(500, evidence=None, notice=told(100))) == IdlePlan(watch=True)


def test_a_sign_of_work_after_the_notice_makes_it_void() -> None:
    worked = replace(holder(1, notice=told(20)), sign_ns=999 * M)
    plan = decide(worked)
    assert plan.step == "withdraw"
    assert plan.because is not None
    assert plan.because.text == "works again after 29 min: the notice is withdrawn"


def test_a_late_report_of_work_before_the_notice_makes_it_void_too() -> None:
    late = replace(holder(20, notice=told(5, since=960)), sign_ns=980 * M)
    assert decide(late).step == "withdraw"


def test_a_step_that_takes_longer_than_the_terms_is_waited_for_where_nothing_is_measured() -> None:
    slow = replace(holder(40, evidence="steps"), pace_ns=20 * M)
    assert (decide(slow).step, decide(slow).again_ns) == (None, 1020 * M)
    assert decide(replace(holder(60, evidence="steps"), pace_ns=20 * M)).step == "tell"
    assert decide(replace(slow, evidence="utilisation")).step == "tell"


def test_one_that_may_be_at_work_unseen_is_told_and_never_released() -> None:
    silent = holder(60, worked=False, evidence="none")
    plan = decide(silent)
    assert (plan.step, plan.notice_ns, plan.again_ns) == ("tell", 0, None)
    assert plan.because is not None
    assert "may be working" in plan.because.text
    assert (
        decide(holder(500, worked=False, evidence="none", notice=told(400, since=500, notice=0))).step is None
    )


def test_a_notice_that_promised_no_release_is_given_anew_before_one() -> None:
    """The policy was changed, or the utilisation can be measured by now."""
    promised = holder(500, notice=told(400, since=500, notice=0))
    plan = decide(promised)
    assert (plan.step, plan.notice_ns) == ("tell", 15 * M)


def test_a_policy_may_only_tell_and_may_leave_alone() -> None:
    only_tells = replace(TERMS, release=False)
    plan = decide(holder(500), only_tells)
    assert plan.because is not None
    assert (plan.step, plan.notice_ns) == ("tell", 0)
    assert "the policy only sends notices" in plan.because.text
    assert decide(holder(500, notice=told(400, since=500)), only_tells).step is None
    assert decide(holder(500), None) == IdlePlan()
    spared = decide(holder(500, notice=told(400, since=500)), None)
    assert spared.because is not None
    assert (spared.step, spared.because.code) == ("withdraw", "idle_spared")


def test_terms_come_from_the_nearest_queue_that_has_some_and_exemptions_from_any_above() -> None:
    own = replace(TERMS, after_ns=M)
    policy = IdlePolicy(TERMS, exempt=("lab",), idle_ok=("notebooks",), queues={"night": own})
    parents = {"night": "research", "deep": "night", "bench": "lab", "mine": "notebooks"}
    assert policy.terms_of("day", parents, idle_ok=True) == TERMS
    assert policy.terms_of("deep", parents, idle_ok=False) == own
    assert policy.terms_of("bench", parents, idle_ok=False) is None
    assert policy.terms_of("mine", parents, idle_ok=True) is None
    assert policy.terms_of("mine", parents, idle_ok=False) == TERMS


def test_parents_that_form_a_cycle_do_not_hang_the_lookup() -> None:
    assert IdlePolicy().terms_of("a", {"a": "b", "b": "a"}, idle_ok=False) == IdleTerms()


minutes = st.integers(0, 200).map(lambda n: n * M)
holders = st.builds(
    IdleHolder, st.just(A), st.just("day"), minutes, minutes, minutes, st.just(2), st.just(2_000_000),
    st.sampled_from(["utilisation", "steps", "none", None]),
    st.none() | st.builds(ActiveNotice, minutes, minutes, minutes),
)  # fmt: skip
terms = st.builds(
    IdleTerms,
    *[st.integers(1, 120).map(lambda n: n * M)] * 3,
    st.booleans(),
    st.sampled_from(["end", "requeue"]),
)


@given(holders, terms)
def test_a_release_follows_a_notice_of_full_length_on_evidence_and_no_sign_of_work(
    found: IdleHolder, terms: IdleTerms
) -> None:
    plan = decide_idle(found, terms, 1000 * M)
    if plan.step == "release":
        assert terms.release
        assert found.notice is not None
        assert 0 < found.notice.notice_ns <= found.notice.passed_ns
        assert found.sign_ns <= found.notice.since_ns
        assert found.evidence in ("utilisation", "steps")
    if plan.step == "tell":
        assert found.quiet_ns >= min(terms.after_ns, terms.start_ns)
        assert found.evidence is not None
    assert (plan.step is None) == (plan.because is None)
    if plan.again_ns is not None:
        assert plan.again_ns > 1000 * M  # else the loop would never rest


@given(holders, terms)
def test_the_next_look_is_no_later_than_something_may_change(found: IdleHolder, terms: IdleTerms) -> None:
    """Left quiet and measured, a holder that is to be told or released is at the time that was named."""
    plan = decide_idle(found, terms, 1000 * M)
    if plan.step is not None or plan.again_ns is None or found.evidence is None:
        return
    for at_ns, due in ((plan.again_ns - 1, False), (plan.again_ns, True)):
        later_ns = at_ns - 1000 * M
        notice = found.notice and found.notice._replace(passed_ns=found.notice.passed_ns + later_ns)
        then = replace(found, quiet_ns=found.quiet_ns + later_ns, notice=notice)
        again = decide_idle(then, terms, at_ns)
        assert (again.step is not None or again.watch != plan.watch) == due


def test_measuring_is_rare_for_long_terms_and_never_too_dense() -> None:
    assert measure_every_ns(TERMS) == M
    assert measure_every_ns(replace(TERMS, after_ns=M)) == 3 * 10**9
    assert measure_every_ns(replace(TERMS, after_ns=10**9)) == 5 * 10**8
