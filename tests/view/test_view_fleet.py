"""Nodes and devices that come, go, fall ill and recover: where their time goes, and who may have them."""

from __future__ import annotations

from sim.worlds import fleet_of, node
from unidle.fleet import Fleet
from view.telling import Telling

ONE, TWO = fleet_of(1), fleet_of(1, 1)


def test_a_device_is_accounted_for_from_its_first_sighting_on() -> None:
    told = Telling(1).at(10).fleet(TWO).at(25)
    assert told.ledger("n0/0") == [(0, 25, "no_demand")]
    assert told.ledger("n1/0") == [(10, 25, "no_demand")]


def test_a_device_that_left_has_no_time_and_one_that_returned_was_unseen_meanwhile() -> None:
    told = Telling(1, 1).at(10).fleet(ONE)
    assert told.at(20).ledger("n1/0") == [(0, 10, "no_demand")]
    assert not told.view.occupancy.knows("n1/0")
    told.at(30).fleet(TWO).at(40)
    assert told.ledger("n1/0") == [(0, 10, "no_demand"), (10, 30, "unseen"), (30, 40, "no_demand")]
    assert told.view.occupancy.is_free("n1/0")


def test_a_device_that_left_and_returned_in_one_moment_loses_no_time() -> None:
    assert Telling(1, 1).at(10).fleet(ONE).fleet(TWO).at(20).ledger("n1/0") == [(0, 20, "no_demand")]


def test_a_device_that_left_under_a_job_is_accounted_for_until_the_attempt_ended() -> None:
    told = Telling(1, 1).submit("j").place("j", "n1/0").at(10).fleet(ONE)
    told.at(20).end("j", 0, "succeeded").done("j", "succeeded").at(30)
    assert told.ledger("n1/0") == [(0, 20, "unmeasured")]
    assert told.view.book.slices[1].gone_ns is not None


def test_a_faulty_node_is_down_until_it_is_healthy_and_no_job_gets_it() -> None:
    told = Telling(1, 1).at(10).health("n1", "fault")
    assert told.view.occupancy.free == {"gpu": 1}
    told.at(15).health("n1", "repair").at(30).health("n1", "healthy").at(40)
    assert told.ledger("n1/0") == [
        (0, 10, "no_demand"),
        (10, 15, "fault"),
        (15, 30, "repair"),
        (30, 40, "no_demand"),
    ]
    assert told.view.occupancy.free == {"gpu": 2}


def test_a_device_is_as_ill_as_itself_before_its_node() -> None:
    told = (
        Telling(2)
        .at(1)
        .health("n0", "maintenance")
        .at(2)
        .health("n0/1", "fault")
        .at(3)
        .health("n0", "healthy")
    )
    told.at(4)
    assert told.ledger("n0/0") == [(0, 1, "no_demand"), (1, 3, "maintenance"), (3, 4, "no_demand")]
    assert told.ledger("n0/1") == [(0, 1, "no_demand"), (1, 2, "maintenance"), (2, 4, "fault")]
    assert told.view.occupancy.free == {"gpu": 1}


def test_a_device_that_comes_to_a_faulty_node_is_down_from_the_start() -> None:
    told = Telling(1).health("n0", "fault").at(10).fleet(fleet_of(2)).at(20)
    assert told.ledger("n0/1") == [(10, 20, "fault")]
    assert told.view.occupancy.free == {"gpu": 0}


def test_a_device_that_left_ill_and_was_repaired_meanwhile_returns_healthy() -> None:
    told = Telling(1, 1).at(5).health("n1", "fault").at(10).fleet(ONE).at(12).health("n1", "healthy")
    told.at(20).fleet(TWO).at(30)
    assert told.ledger("n1/0") == [
        (0, 5, "no_demand"),
        (5, 10, "fault"),
        (10, 20, "unseen"),
        (20, 30, "no_demand"),
    ]
    told.submit("j").place("j", "n1/0").at(31).end("j", 0, "succeeded").done("j", "succeeded")
    assert told.view.occupancy.is_free("n1/0")


def test_a_fault_under_a_job_counts_as_fault_for_as_long_as_it_lasts() -> None:
    told = Telling(2).submit("j").place("j", "n0/0").at(5).health("n0", "fault").at(8).end("j", -9, "failed")
    told.done("j", "failed").at(10).health("n0", "healthy").at(12)
    assert told.ledger("n0/0") == [(0, 5, "failed_start"), (5, 10, "fault"), (10, 12, "no_demand")]
    assert told.ledger("n0/1") == [(0, 5, "no_demand"), (5, 10, "fault"), (10, 12, "no_demand")]
    assert told.view.occupancy.free == {"gpu": 2}


def test_a_device_that_moved_to_no_known_place_is_not_given_back() -> None:
    told = Telling(1, 1).submit("j").place("j", "n1/0").at(5).fleet(Fleet(nodes=(node("n0", 1),)))
    told.at(6).end("j", 0, "succeeded").done("j", "succeeded")
    assert told.view.occupancy.free == {"gpu": 1}
