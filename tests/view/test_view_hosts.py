"""Nodes that change one by one, ranks that do not answer, slices that a host gave otherwise, and what others use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.worlds import S, canonical, fleet_of, node
from unidle.control.queries.describe import explain, job_line, silence_text
from unidle.control.queries.explanation import story_lines
from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.fleet import Fleet, Node
from unidle.fleet.policies import WatchSources
from unidle.jobs import Reason, Requests
from unidle.view.fold import fold
from unidle.view.node_edits import edit_of, edited
from unidle.view.snapshot import decode, encode
from unidle.view.state import View
from view.telling import WHY, Telling


def changed(*, put: tuple[Node, ...] = (), gone: tuple[str, ...] = (), **labels: str) -> ev.FleetChanged:
    return ev.FleetChanged(put, tuple(ev.NodeEdit(n, {"zone": value}) for n, value in labels.items()), gone)


def silent(since_s: float, *ranks: int, job: str = "j") -> ev.RanksSilent:
    return ev.RanksSilent(job, 1, ranks, 1 + int(since_s * S) if since_s else 0)


# -- nodes -------------------------------------------------------------------------------------------


def test_a_changed_label_leaves_slices_and_their_occupancy_as_they_are() -> None:
    told = Telling(2, 2).submit("j").place("j", "n1/0")
    occupancy, models = told.view.occupancy, told.view.models
    told.tell(changed(n1="b"))
    assert told.view.fleet.nodes[1].labels == {"zone": "b"}
    assert told.view.occupancy is occupancy
    assert told.view.models is models
    told.tell(ev.FleetChanged(edits=(ev.NodeEdit("n1", {"zone": None}, taints=("lab",)),)))
    assert (told.view.fleet.nodes[1].labels, told.view.fleet.nodes[1].taints) == ({}, ("lab",))


def test_a_node_comes_and_another_leaves_as_if_the_whole_fleet_had_been_seen() -> None:
    few = Telling(1, 2, 1).at(5)
    few.tell(changed(put=(node("n3", 2),), gone=("n0",))).at(9)
    whole = Telling(1, 2, 1).at(5).fleet(Fleet(nodes=(*fleet_of(1, 2, 1).nodes[1:], node("n3", 2)))).at(9)
    assert few.view.fleet == whole.view.fleet
    for piece in ("n0/0", "n1/0", "n3/1"):
        assert few.ledger(piece) == whole.ledger(piece)
    assert few.view.occupancy.nodes == whole.view.occupancy.nodes


def test_who_holds_a_node_that_leaves_keeps_it_to_its_end() -> None:
    told = Telling(1, 1).submit("j").place("j", "n0/0").at(3).tell(changed(gone=("n0",)))
    assert told.view.book.slices[0].gone_ns is None
    told.at(6).end("j", 0, "succeeded").done("j", "succeeded")
    assert told.view.book.slices[0].gone_ns == told.view.time_ns


def test_a_node_with_another_device_keeps_the_others() -> None:
    told = Telling(2).submit("j").place("j", "n0/0").at(2).tell(changed(put=(node("n0", 3),)))
    assert [told.view.occupancy.is_free(f"n0/{k}") for k in range(3)] == [False, True, True]
    told.at(4).tell(changed(put=(node("n0", 1),)))
    assert not told.view.occupancy.knows("n0/1")
    assert told.ledger("n0/2") == [(2, 4, "no_demand")]


_FIELDS = {
    "labels": st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2"])),
    "taints": st.sampled_from([(), ("lab",)]), "parent": st.sampled_from(["", "leaf"]),
    "cpus": st.sampled_from([0.0, 8.0]), "memory_bytes": st.sampled_from([0, 1 << 30]),
    "address": st.sampled_from(["127.0.0.1", "10.0.0.2"]), "fabric": st.sampled_from([None, "roce"]),
    "gpu_links": st.sampled_from(["", "a"]), "netns": st.sampled_from(["", "n"]),
    "watch": st.sampled_from([None, WatchSources()]), "sources": st.sampled_from([(), ("devices: 2",)]),
}  # fmt: skip


@given(st.fixed_dictionaries(_FIELDS), st.fixed_dictionaries(_FIELDS))
def test_an_edit_holds_exactly_what_changed_also_through_the_log(
    one: dict[str, object], other: dict[str, object]
) -> None:
    before, after = replace(node("n0", 1), **one), replace(node("n0", 1), **other)  # type: ignore[arg-type]
    edit = edit_of(before, after)
    assert edit is not None
    kind, body = ev.encode(ev.FleetChanged(edits=(edit,)))
    event = ev.decode(kind, body)
    assert isinstance(event, ev.FleetChanged)
    assert edited(before, event.edits[0]) == after
    assert edit_of(before, before) == ev.NodeEdit("n0")
    assert set(Node.__slots__) == {*_FIELDS, "id", "devices"}, "a new field of a node belongs in NodeEdit too"


def test_health_and_spares_find_their_slices_after_nodes_came_and_left() -> None:
    told = Telling(2, 2).health("n0", "fault").at(1).tell(changed(put=(node("n2", 1),), gone=("n0",)))
    told.at(2).health("n2/0", "repair").health("n1", "maintenance").at(3).tell(changed(put=(node("n0", 2),)))
    told.at(4).health("n0", "healthy").tell(ev.SparesSet(("n0",))).at(5)
    assert told.ledger("n0/1") == [(0, 1, "fault"), (1, 3, "unseen"), (3, 4, "fault"), (4, 5, "reserved")]
    assert told.ledger("n2/0") == [(1, 2, "no_demand"), (2, 5, "repair")]
    assert told.ledger("n1/0") == [(0, 2, "no_demand"), (2, 5, "maintenance")]


# -- silence -----------------------------------------------------------------------------------------


def test_time_in_which_nothing_is_heard_and_no_step_is_known_is_silent() -> None:
    told = Telling(1, 1).submit("j", ranks=2).place("j", "n0/0", "n1/0").steps("j", 1, 4)
    told.at(10).tell(silent(5, 1)).at(20)
    assert told.ledger("n1/0")[-1] == (5, 20, "silent")
    assert told.ledger("n0/0")[-1][2] == "useful"
    told.at(21).tell(silent(0, 1)).at(30)
    assert told.ledger("n1/0")[-2:] == [(5, 21, "silent"), (21, 30, "useful")]


def test_steps_that_come_later_prove_work_in_the_silence() -> None:
    told = Telling(1).submit("j").place("j", "n0/0").steps("j", 1, 4)
    told.at(10).tell(silent(4, 0)).at(5).steps("j", 5, 9)  # marks of that time arrive
    told.at(12).tell(silent(0, 0)).at(12)
    assert "silent" not in [leaf for start, _, leaf in told.ledger("n0/0") if start < 10]


def test_a_silent_rank_that_is_lost_was_silent_until_then_and_only_known_work_is_lost() -> None:
    told = Telling(1).submit("j").place("j", "n0/0").steps("j", 1, 4)
    told.at(9).tell(silent(5, 0)).at(20).mark("j", 0, "lost").at(22)
    told.tell(ev.AttemptEnded("j", 1, "failed", WHY)).retry("j").at(25)
    leaves = told.ledger("n0/0")
    assert (5, 20, "silent") in leaves
    assert "replayed" in [leaf for start, _, leaf in leaves if start < 5]
    assert "replayed" not in [leaf for start, _, leaf in leaves if start >= 5]


def test_explain_and_list_say_since_when_a_rank_is_silent_and_where() -> None:
    told = Telling(1, 1).submit("j", ranks=2).place("j", "n0/0", "n1/0").at(10).tell(silent(2, 1))
    assert silence_text(job_line(told.job("j")), 1 + 10 * S) == "silent since 8 s on n1"
    lines = "\n".join(story_lines(explain(told.view, told.job("j"))))
    assert "now: silent since 8 s on n1: rank 1 does not answer" in lines
    told.at(12).tell(silent(0, 1))
    lines = "\n".join(story_lines(explain(told.view, told.job("j"))))
    assert "now: silent" not in lines
    assert "rank 1 on n1 did not answer for 10.0 s" in lines


# -- ended by others ---------------------------------------------------------------------------------


def test_steps_of_a_gang_that_others_ended_are_lost_to_that() -> None:
    told = Telling(1).submit("j").place("j", "n0/0").steps("j", 1, 4)
    told.at(6).tell(ev.AttemptDisrupted("j", 1, Reason("evicted", "its pod was evicted")))
    told.at(7).end("j", -15, "preempted").tell(ev.Requeued("j", WHY)).at(8)
    assert "disrupted" in [leaf for _, _, leaf in told.ledger("n0/0")]
    assert "ended by others: its pod was evicted" in "\n".join(story_lines(explain(told.view, told.job("j"))))
    assert told.job("j").retries == 0


# -- landed ------------------------------------------------------------------------------------------


def landed(job: str, rank: int, *slices: str) -> ev.RankLanded:
    return ev.RankLanded(job, 1, rank, slices[0].split("/")[0], slices)


def test_the_books_follow_what_the_host_gave() -> None:
    told = Telling(2, 2).submit("j", requests=Requests(cpus=2.0)).place("j", "n0/0")
    assert told.view.hosts == {"n0": [2000, 0]}
    told.at(3).tell(landed("j", 0, "n1/1")).at(5)
    assert told.job("j").attempts[0].places[0].node == "n1"
    assert told.ledger("n0/0") == [(0, 3, "gang_wait"), (3, 5, "no_demand")]
    assert told.ledger("n1/1")[0] == (0, 3, "no_demand")
    assert (told.view.occupancy.is_free("n0/0"), told.view.occupancy.is_free("n1/1")) == (True, False)
    assert told.view.hosts == {"n0": [0, 0], "n1": [2000, 0]}
    assert "rank 0 got n1/1 from its host, not n0/0" in "\n".join(
        story_lines(explain(told.view, told.job("j")))
    )
    told.at(7).end("j", 0, "succeeded").done("j", "succeeded")
    assert told.view.occupancy.is_free("n1/1")


def test_two_ranks_that_got_each_others_slices_are_exchanged_once() -> None:
    told = Telling(2).submit("a").submit("b").place("a", "n0/0").place("b", "n0/1")
    told.at(2).tell(landed("a", 0, "n0/1"))
    assert [told.job(job).attempts[0].places[0].slices for job in "ab"] == [("n0/1",), ("n0/0",)]
    told.at(3).tell(landed("b", 0, "n0/0")).at(4)
    assert len(told.job("b").attempts[0].landings) == 1
    for piece in ("n0/0", "n0/1"):
        assert sum(end - start for start, end, _ in told.ledger(piece)) == 4


def test_slices_that_are_not_alike_or_not_there_are_damage() -> None:
    told = Telling(2).submit("j").place("j", "n0/0")
    for slices in (("n0/1", "n0/0"), ("n9/0",), ()):
        with pytest.raises(StoreDamaged):
            Telling(2).submit("j").place("j", "n0/0").tell(ev.RankLanded("j", 1, 0, "n0", slices))
    assert told.view.occupancy.is_free("n0/1")


# -- used by others ----------------------------------------------------------------------------------


def taken(*devices: str, cpus: float = 0.0, node: str = "n0") -> ev.NodeTaken:
    return ev.NodeTaken(node, cpus, 0, devices, Reason("pods", "pods of others"))


def test_what_others_use_is_not_free_and_has_its_own_leaf() -> None:
    told = Telling(2).at(1).tell(taken("n0/0", cpus=3.0))
    assert [told.view.occupancy.is_free(f"n0/{k}") for k in range(2)] == [False, True]
    assert told.view.hosts == {"n0": [3000, 0]}
    assert told.view.barred == {"n0/0": "taken"}
    told.at(4).tell(taken("n0/1")).at(6)
    assert told.ledger("n0/0") == [(0, 1, "no_demand"), (1, 4, "taken"), (4, 6, "no_demand")]
    assert told.ledger("n0/1") == [(0, 4, "no_demand"), (4, 6, "taken")]
    told.tell(taken())
    assert told.view.taken == {}
    assert told.view.hosts == {"n0": [0, 0]}


def test_who_has_a_device_that_others_take_keeps_it_and_it_is_theirs_afterwards() -> None:
    told = Telling(1).submit("j").place("j", "n0/0").steps("j", 1, 3).tell(taken("n0/0")).at(5)
    assert "taken" not in [leaf for _, _, leaf in told.ledger("n0/0")]
    told.end("j", 0, "succeeded").done("j", "succeeded").at(9)
    assert told.ledger("n0/0")[-1] == (5, 9, "taken")
    assert not told.view.occupancy.is_free("n0/0")


def test_explain_names_what_others_use() -> None:
    told = Telling(1).tell(taken("n0/0")).submit("j", device="gpu")
    lines = "\n".join(story_lines(explain(told.view, told.job("j"))))
    assert "n0/0 is used by others: pods of others" in lines


# -- whatever comes ----------------------------------------------------------------------------------

_SLICES = [f"n{n}/{k}" for n in range(2) for k in range(3)]
_STEPS = st.one_of(
    st.tuples(st.just("silent"), st.sampled_from("ab"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("land"), st.sampled_from("ab"), st.integers(0, 1), st.sampled_from(_SLICES)),
    st.tuples(st.just("taken"), st.sampled_from(["n0", "n1"]), st.sets(st.sampled_from(_SLICES))),
    st.tuples(st.just("label"), st.sampled_from(["n0", "n1"]), st.sampled_from("xy")),
    st.tuples(st.just("node"), st.integers(0, 3), st.booleans()),
    st.tuples(
        st.just("health"), st.sampled_from(["n0", "n0/1", "n1"]), st.sampled_from(["fault", "healthy"])
    ),
    st.tuples(st.just("step"), st.sampled_from("ab")),
    st.tuples(st.just("disrupt"), st.sampled_from("ab")),
    st.tuples(st.just("end"), st.sampled_from("ab"), st.sampled_from([0, 1])),
)


def happen(told: Telling, what: tuple[object, ...], moment: int) -> None:
    """Tell one of the above, where it fits."""
    view, at_ns = told.view, 1 + int(told.at_s * S)
    match what:
        case "silent", str(job), int(rank), bool(ends):
            told.tell(ev.RanksSilent(job, 1, (rank,), 0 if ends else max(at_ns - S, 1)))
        case "land", str(job), int(rank), str(piece):
            attempt = view.jobs[job].attempts[-1]
            known = view.occupancy.knows_all((*attempt.places[rank].slices, piece))
            if attempt.live and known:
                told.tell(ev.RankLanded(job, 1, rank, piece.split("/")[0], (piece,)))
        case "taken", str(name), set(devices):
            told.tell(ev.NodeTaken(name, 1.0, 0, tuple(sorted(d for d in devices if d[:2] == name)), WHY))
        case "label", str(name), str(value):
            told.tell(ev.FleetChanged(edits=(ev.NodeEdit(name, {"zone": value}),)))
        case "node", int(count), bool(gone):
            there = "n2" in view.nodes
            told.tell(
                ev.FleetChanged(gone=("n2",)) if gone and there else ev.FleetChanged((node("n2", count),))
            )
        case "health", str(target), str(health):
            told.health(target, health)
        case "step", str(job) if view.jobs[job].live is not None:
            told.mark(job, 0, "step", n=moment + 1)
        case "disrupt", str(job):
            told.tell(ev.AttemptDisrupted(job, 1, WHY))
        case "end", str(job), int(code) if view.jobs[job].live is not None:
            told.end(job, code, "failed" if code else "succeeded")
            told.done(job, "failed" if code else "succeeded")


class Logged(Telling):
    """Also keeps the log, so that it can be folded again."""

    def __init__(self, *devices: int) -> None:
        self.log: list[tuple[int, int, str, int, str, bytes]] = []
        super().__init__(*devices)

    def tell(self, event: ev.Event) -> Telling:
        super().tell(event)
        self.log.append((self.view.seq, self.view.time_ns, "", 0, *ev.encode(event)))
        return self


@settings(max_examples=60, deadline=None)
@given(st.lists(_STEPS, max_size=25), st.integers(0, 25))
def test_whatever_hosts_do_time_adds_up_and_the_log_gives_the_same_view_again(
    story: list[tuple[object, ...]], kept_at: int
) -> None:
    told = Logged(3, 3)
    told.submit("a", ranks=2).submit("b", ranks=2)
    told.place("a", "n0/0", "n0/1").place("b", "n1/0", "n1/1")
    kept: View | None = None
    for moment, what in enumerate(story):
        told.at(moment + 1)
        happen(told, what, moment)
        if moment == kept_at:
            kept = decode(encode(told.view))
        held = [s for j in told.view.live for p in told.view.jobs[j].attempts[-1].places for s in p.slices]
        assert len(held) == len(set(held)), "no slice has two holders"
        unfit = told.view.unfit()
        for piece in told.view.fleet.slices():
            assert told.view.occupancy.is_free(piece.id) == (piece.id not in held and piece.id not in unfit)
    told.at(len(story) + 2)
    for piece in _SLICES:  # checked to add up in there
        assert sum(end - start for start, end, _ in told.ledger(piece)) == pytest.approx(told.at_s)
    again = fold(View(), told.log)  # type: ignore[arg-type]
    assert canonical(again) == canonical(told.view)
    if kept is not None:
        seq = kept.seq
        later = fold(kept, (event for event in told.log if event[0] > seq))  # type: ignore[misc]
        assert canonical(later) == canonical(told.view)
        assert later.hosts == told.view.hosts
        assert later.occupancy.free == told.view.occupancy.free


def test_a_log_from_before_these_events_still_folds() -> None:
    event = ev.decode("job_submitted", b'{"job":"j","spec":{"command":["train"]},"submitted_by":"ann"}')
    told = Telling(1).tell(event)
    assert (told.job("j").source, told.job("j").identity) == ("", "")
    assert job_line(told.job("j"))["source"] is None
    assert b"identity" not in ev.encode(event)[1]
