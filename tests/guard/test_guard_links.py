"""What follows from checks between nodes: which end of a bad link is taken out, and when links are measured again."""

from __future__ import annotations

from unidle.guard.links import LinksReport, LinksResult, decide_links, judged
from unidle.guard.preflight import PreflightRules

S = 1_000_000_000
RULES = PreflightRules(quick_ns=60 * S, again=2, pause_ns=5 * S)
FOUR = ("n1", "n2", "n3", "n4")


def result(
    fit: bool | None, at_s: int, nodes: tuple[str, ...] = FOUR, bad: tuple[str, ...] = ()
) -> LinksResult:
    return LinksResult(frozenset(nodes), fit, bad, at_s * S, "why")


def test_links_that_are_good_are_said_with_the_least_rate():
    assert judged(LinksReport(FOUR, least_gbps=9.41)) == (
        True,
        (),
        "links between 4 nodes, 9.41 Gbit/s or more",
    )


def test_a_bad_node_is_taken_out_with_its_rates():
    slow = (("n1", "n3", 0.1), ("n2", "n3", None))
    fit, bad, because = judged(LinksReport(FOUR, ("n3",), (), slow))
    assert (fit, bad, because) == (False, ("n3",), "n3: n1 0.1 Gbit/s, n2 not reached")


def test_of_bad_links_the_end_with_most_of_them_is_taken_out():
    links = (("n1", "n2"), ("n2", "n4"), ("n1", "n3"))
    assert judged(LinksReport(FOUR, bad_links=links))[1] == ("n2", "n3")
    assert judged(LinksReport(FOUR, bad_links=(("n1", "n4"),)))[1] == ("n4",)
    assert judged(LinksReport(FOUR, ("n1",), (("n1", "n4"),)))[1] == ("n1",)


def test_nodes_that_do_not_reach_the_leader_are_bad_unless_none_does():
    assert judged(LinksReport(FOUR, absent=("n3",)))[:2] == (False, ("n3",))
    assert judged(LinksReport(FOUR, absent=("n2", "n3", "n4")))[:2] == (False, ("n1",))


def test_with_two_nodes_it_stays_open_which_is_bad():
    fit, bad, because = judged(LinksReport(("n1", "n2"), slow=(("n1", "n2", 0.002),)))
    assert (fit, bad) == (None, ())
    assert because == "which end is bad is not known: n1 and n2: 0.002 Gbit/s"
    assert judged(LinksReport(("n1", "n2"), absent=("n2",)))[:2] == (None, ())


def test_a_result_counts_for_gangs_among_its_nodes_until_it_is_too_old():
    def action(nodes: tuple[str, ...], now_s: int) -> str:
        return decide_links(nodes, [result(True, 10)], {}, now_s * S, RULES).action

    assert action(("n1", "n4"), 20) == "start"
    assert action(("n1", "n5"), 20) == "measure"
    assert action(("n1", "n4"), 71) == "measure"


def test_what_was_measured_before_a_repair_counts_no_more():
    known = [result(False, 10, bad=("n2",))]
    assert decide_links(FOUR, known, {}, 20 * S, RULES).action == "taint"
    assert decide_links(FOUR, known, {"n2": 15 * S}, 20 * S, RULES).action == "measure"
    assert decide_links(FOUR, known, {"n9": 15 * S}, 20 * S, RULES).action == "taint"


def test_a_gang_without_the_bad_node_starts():
    found = decide_links(("n1", "n3"), [result(False, 10, bad=("n2",))], {}, 20 * S, RULES)
    assert (found.action, found.bad, found.fit) == ("start", ("n2",), True)


def test_an_undecided_check_is_repeated_after_a_pause_and_then_no_longer_waited_for():
    once = [result(True, 1), result(None, 10)]
    again = decide_links(FOUR, once, {}, 11 * S, RULES)
    assert (again.action, again.not_before_ns) == ("measure", 15 * S)
    twice = decide_links(FOUR, [*once, result(None, 16)], {}, 17 * S, RULES)
    assert (twice.action, twice.fit) == ("start", False)
