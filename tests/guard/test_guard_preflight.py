"""Which check a node needs, and what its result means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unidle.guard.preflight import Decision, PreflightResult, PreflightRules, decide, decide_gang, tier_needed

S = 1_000_000_000
RULES = PreflightRules(quick_ns=60 * S, standard_ns=86_400 * S, again=3, pause_ns=10 * S)
results = st.lists(
    st.builds(
        PreflightResult,
        node=st.just("n1"),
        tier=st.sampled_from(["quick", "standard", "burn-in"]),
        fit=st.sampled_from([True, False, None]),
        at_ns=st.integers(0, 1000).map(lambda s: s * S),
        because=st.just("why"),
    ),
    max_size=8,
    unique_by=lambda r: r.at_ns,
)


def test_a_new_and_a_repaired_node_need_the_standard_check():
    assert tier_needed([], None, 0, RULES) == "standard"
    proved = [PreflightResult("n1", "standard", True, 5 * S)]
    assert tier_needed(proved, None, 6 * S, RULES) is None
    assert tier_needed(proved, 7 * S, 8 * S, RULES) == "standard"


def test_a_proved_node_needs_the_quick_check_when_its_last_one_is_old():
    proved = [PreflightResult("n1", "standard", True, 0)]
    assert tier_needed(proved, None, 59 * S, RULES) is None
    assert tier_needed(proved, None, 60 * S, RULES) == "quick"
    quick = [*proved, PreflightResult("n1", "quick", True, 100 * S)]
    assert tier_needed(quick, None, 120 * S, RULES) is None
    assert tier_needed(quick, None, 86_400 * S, RULES) == "standard"


def test_a_quick_check_alone_never_proves_a_new_node():
    assert tier_needed([PreflightResult("n1", "quick", True, 0)], None, S, RULES) == "standard"


def test_an_unfit_node_is_tainted_with_its_reason_until_it_was_repaired():
    bad = [
        PreflightResult("n1", "standard", True, 0),
        PreflightResult("n1", "quick", False, 70 * S, "GPU 3 is gone"),
    ]
    assert decide("n1", bad, None, 80 * S, RULES) == Decision("taint", "n1", "unfit: GPU 3 is gone")
    after = decide("n1", bad, 90 * S, 91 * S, RULES)
    assert (after.action, after.tier) == ("again", "standard")
    proved = [*bad, PreflightResult("n1", "standard", True, 95 * S)]
    assert decide("n1", proved, 90 * S, 96 * S, RULES).action == "start"


def test_a_check_that_could_not_tell_is_repeated_a_few_times_and_is_no_fault():
    silent = [PreflightResult("n1", "standard", None, k * S, "no leave to read the log") for k in range(1, 4)]
    first = decide("n1", silent[:1], None, 2 * S, RULES)
    assert (first.action, first.tier, first.not_before_ns) == ("again", "standard", 11 * S)
    last = decide("n1", silent, None, 4 * S, RULES)
    assert last.action == "elsewhere" and "no leave to read the log" in last.because


def test_a_node_that_was_proved_runs_on_that_proof_when_the_quick_check_cannot_tell():
    known = [
        PreflightResult("n1", "standard", True, 0),
        *(PreflightResult("n1", "quick", None, (70 + k) * S) for k in range(3)),
    ]
    assert decide("n1", known[:3], None, 80 * S, RULES).action == "again"
    assert decide("n1", known, None, 80 * S, RULES).action == "start"


def test_a_gang_starts_only_where_every_node_may():
    good = ([PreflightResult("a", "standard", True, 0)], None)
    bad = ([PreflightResult("b", "quick", False, 0, "ECC")], None)
    new: tuple[list[PreflightResult], None] = ([], None)
    assert decide_gang({"a": good}, S, RULES)[0] == "start"
    assert decide_gang({"a": good, "c": new}, S, RULES)[0] == "again"
    action, each = decide_gang({"a": good, "b": bad, "c": new}, S, RULES)
    assert action == "taint" and [one.node for one in each if one.action == "taint"] == ["b"]


@given(results, st.none() | st.integers(0, 1000).map(lambda s: s * S))
def test_what_could_not_be_told_never_proves_and_never_taints(
    known: list[PreflightResult], changed_ns: int | None
):
    now_ns = 1001 * S
    told = [r for r in known if r.fit is not None]
    assert tier_needed(known, changed_ns, now_ns, RULES) == tier_needed(told, changed_ns, now_ns, RULES)
    if decide("n1", known, changed_ns, now_ns, RULES).action == "taint":
        assert any(r.fit is False and r.at_ns > (changed_ns or -1) for r in known)


@given(results, st.none() | st.integers(0, 1000).map(lambda s: s * S))
def test_a_node_is_started_on_only_after_a_thorough_proof_that_nothing_made_void(
    known: list[PreflightResult], changed_ns: int | None
):
    if decide("n1", known, changed_ns, 1001 * S, RULES).action == "start":
        proofs = [r.at_ns for r in known if r.fit and r.tier != "quick"]
        void = [r.at_ns for r in known if r.fit is False]
        assert max(proofs) > max([*void, -1 if changed_ns is None else changed_ns])


@given(results, st.randoms())
def test_the_order_in_which_results_arrive_does_not_matter(known: list[PreflightResult], chance):
    mixed = list(known)
    chance.shuffle(mixed)
    assert decide("n1", known, None, 1001 * S, RULES) == decide("n1", mixed, None, 1001 * S, RULES)
