"""Devices that are cut anew, by a fleet file or on demand: a slice's name means one share, and time adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.worlds import fleet_of
from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.fleet import WHOLE_PPM, Cut, CutPart, Device, Fleet, Sharing, as_declared, slices_of
from unidle.jobs import Reason
from unidle.view import snapshot
from view.telling import Telling

WHY = Reason("test", "because")


def cut_fleet(*shares_ppm: int) -> Fleet:
    """One node with one device, cut as declared."""
    fleet = fleet_of(1)
    device = replace(fleet.nodes[0].devices[0], slices_ppm=shares_ppm)
    return replace(fleet, nodes=(replace(fleet.nodes[0], devices=(device,)),))


def on_demand() -> Telling:
    fleet = fleet_of(2)
    devices = tuple(replace(d, sharing=Sharing(("time",))) for d in fleet.nodes[0].devices)
    return Telling().fleet(replace(fleet, nodes=(replace(fleet.nodes[0], devices=devices),)))


def device(told: Telling) -> Device:
    return told.view.fleet.devices()[0]


def names(told: Telling) -> list[str]:
    return [piece.id for piece in slices_of(device(told))]


def cut(told: Telling, *parts: CutPart, mode: str = "time") -> Telling:
    return told.tell(ev.DeviceCut("n0/0", Cut(mode, parts), WHY))  # type: ignore[arg-type]


def test_a_device_that_a_fleet_file_cuts_anew_has_slices_of_other_names() -> None:
    told = Telling().fleet(cut_fleet(500_000, 500_000))
    assert names(told) == ["n0/0#0", "n0/0#1"]
    told.at(10).fleet(cut_fleet(250_000, 750_000))
    assert names(told) == ["n0/0#1.0", "n0/0#1.1"]
    told.at(20).fleet(cut_fleet(500_000, 500_000))
    assert names(told) == ["n0/0#2.0", "n0/0#2.1"]
    told.at(30).fleet(cut_fleet(WHOLE_PPM))
    assert names(told) == ["n0/0#3.0"]
    told.at(40)
    assert told.ledger("n0/0#0") == [(0, 10, "no_demand")]
    assert told.ledger("n0/0#1.1") == [(10, 20, "no_demand")]
    assert told.ledger("n0/0#3.0") == [(30, 40, "no_demand")]
    shares = {ref.id: ref.share_ppm for ref in told.view.book.slices if ref.device == "n0/0"}
    assert shares["n0/0#0"] == 500_000 and shares["n0/0#1.0"] == 250_000


def test_a_fleet_that_is_seen_again_as_it_was_keeps_its_names() -> None:
    told = Telling().fleet(cut_fleet(500_000, 500_000)).fleet(cut_fleet(250_000, 750_000))
    before = names(told)
    assert names(told.fleet(cut_fleet(250_000, 750_000))) == before
    assert as_declared(told.view.fleet) == cut_fleet(250_000, 750_000)


def test_a_device_that_was_away_and_comes_back_cut_otherwise_has_other_names() -> None:
    told = Telling().fleet(cut_fleet(500_000, 500_000)).at(5).fleet(fleet_of(1, first=7))
    assert names(told.at(9).fleet(cut_fleet(250_000, 750_000))) != ["n0/0#0", "n0/0#1"]


def test_a_log_from_before_generations_finds_its_slices_by_their_numbers() -> None:
    told = Telling().fleet(cut_fleet(500_000, 500_000)).at(5).fleet(cut_fleet(250_000, 750_000))
    told.submit("a").place("a", "n0/0#1")
    assert told.job("a").attempts[0].places[0].slices == ("n0/0#1.1",)
    told.at(8).end("a", 0, "succeeded").done("a", "succeeded")
    assert told.ledger("n0/0#1.1")[-1] == (5, 8, "unmeasured")


def test_parts_that_are_left_join_the_rest_and_those_in_use_stay() -> None:
    told = on_demand().submit("a").submit("b").submit("c")
    cut(told.at(1), CutPart("1.0", 300_000, "a"), CutPart("1.1", 300_000, "b"), CutPart("1.2", 400_000))
    told.place("a", "n0/0#1.0").place("b", "n0/0#1.1")
    assert not told.view.occupancy.is_free("n0/0#1.2"), "the rest is given out by another cut only"
    told.at(5).end("a", 0, "succeeded").done("a", "succeeded")
    cut(told, CutPart("1.1", 300_000, "b"), CutPart("2.0", 700_000))
    assert names(told) == ["n0/0#1.1", "n0/0#2.0"]
    told.at(9).end("b", 0, "succeeded").done("b", "succeeded")
    cut(told, CutPart("3.0", WHOLE_PPM), mode="whole")
    assert device(told).cut is None and names(told) == ["n0/0#3.0"]
    assert told.view.occupancy.is_free("n0/0#3.0")
    told.at(12).place("c", "n0/0#3.0").at(14)
    assert told.ledger("n0/0#1.2") == [(1, 5, "no_demand")]
    assert told.ledger("n0/0#1.1")[-1][1] == 9
    assert told.ledger("n0/0#2.0") == [(5, 9, "no_demand")]


@pytest.mark.parametrize(
    "parts",
    [
        (CutPart("2.0", 999_999),),  # not all of it
        (CutPart("2.0", 300_000, "a"), CutPart("2.1", 700_000)),  # the part in use has another name
        (CutPart("1.0", 400_000, "a"), CutPart("2.1", 600_000)),  # the part in use has another share
    ],
)
def test_a_cut_that_does_not_add_up_or_touches_a_part_in_use_is_refused(parts: tuple[CutPart, ...]) -> None:
    told = on_demand().submit("a")
    cut(told, CutPart("1.0", 300_000, "a"), CutPart("1.1", 700_000)).place("a", "n0/0#1.0")
    with pytest.raises(StoreDamaged, match="in another way than its jobs use it"):
        cut(told, *parts)


def test_a_device_that_is_not_cut_on_demand_is_not_cut_by_the_log() -> None:
    with pytest.raises(StoreDamaged, match="not cut on demand"):
        cut(Telling(1), CutPart("1.0", WHOLE_PPM))


def test_cuts_survive_a_new_sighting_and_a_snapshot() -> None:
    told = on_demand().submit("a")
    cut(told, CutPart("1.0", 300_000, "a"), CutPart("1.1", 700_000)).place("a", "n0/0#1.0")
    before = device(told)
    assert device(told.fleet(as_declared(told.view.fleet))) == before
    again = snapshot.decode(snapshot.encode(told.view))
    assert again is not None and again.fleet.devices()[0] == before
    assert again.occupancy.free == told.view.occupancy.free
    # an operator who withdraws the device from sharing waits until nobody uses its parts
    withdrawn = replace(before, sharing=None, cut=None, generation=0)
    node = replace(told.view.fleet.nodes[0], devices=(withdrawn, *told.view.fleet.nodes[0].devices[1:]))
    told.fleet(replace(told.view.fleet, nodes=(node,)))
    assert device(told).cut == before.cut and device(told).sharing is None
    told.at(3).end("a", 0, "succeeded").done("a", "succeeded")
    cut(told, CutPart("2.0", WHOLE_PPM), mode="whole")
    assert names(told) == ["n0/0#2.0"]


def test_a_part_on_a_node_that_fails_is_down_and_whole_again_at_its_end() -> None:
    told = on_demand().submit("a")
    cut(told, CutPart("1.0", 300_000, "a"), CutPart("1.1", 700_000)).place("a", "n0/0#1.0")
    told.at(4).health("n0", "fault").end("a", -9, "failed").retry("a", 1)
    cut(told, CutPart("2.0", WHOLE_PPM), mode="whole")
    assert not told.view.occupancy.is_free("n0/0#2.0")
    told.at(10).health("n0", "healthy")
    assert told.view.occupancy.is_free("n0/0#2.0")
    assert told.ledger("n0/0#2.0") == [(4, 10, "fault")]
