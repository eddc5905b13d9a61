"""Jobs whose directories are on a file server that does not answer, with a real mount that stalls."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from fuse import StubbornMount, stubborn
from sim.worlds import S
from unidle.control.gangs.storage_stalls import STALLED_NS, mount_stalls
from unidle.control.nodes.storage_watch import StorageWatch, directories_of
from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason
from unidle.probe.mount_table import Mount
from unidle.probe.mount_watch import ASK_EVERY_NS, MountState
from unidle.view.incidents import incidents
from view.telling import Telling
from waiting import wait_until

FILER = Mount("/data", "nfs4", "filer:/a")


class World:
    """A view of two nodes, and a watch on its jobs' directories; times in seconds."""

    def __init__(self, locks: Path) -> None:
        self.telling = Telling(2, 2).at(100)
        self.watch = StorageWatch(locks)

    def look(self, at_s: float) -> list[ev.Event]:
        """What follows at a time, applied as the controller does."""
        self.telling.at(at_s)
        found = []
        for event in self.watch.look(self.telling.view, int(at_s * S)):
            self.telling.tell(event)
            found.append(event)
        return found

    def settled(self, at_s: float) -> None:
        """Look until nobody asks any more, and no longer than a second of the log's time."""
        steps = iter(range(1, 1_000_000))
        mounts = self.watch._mounts

        def quiet() -> bool:
            self.watch._next_ns = 0
            self.look(at_s + next(steps) / 1e6)
            return not any(one.pid for one in mounts._asked.values())

        wait_until(quiet, 60, "answers")

    def stalled(self, mount: StubbornMount, at_s: float) -> None:
        """The mount is asked from then on, and says nothing."""
        mount.stall()
        assert self.look(at_s) == []
        assert mount.held.wait(60)


@needs.root
def test_a_mount_that_does_not_answer_is_told_once_of_each_job_there_and_then_its_end(tmp_path: Path) -> None:
    world = World(tmp_path / "locks")
    with stubborn(tmp_path / "far") as mount:
        world.telling.submit("a", workdir=str(mount.place)).place("a", "n0/0")
        world.telling.submit("b", workdir="/", checkpoint_path=str(mount.place / "x")).place(
            "b", "n0/1", "n1/0"
        )
        world.telling.submit("c", workdir=str(tmp_path)).place("c", "n1/1")
        world.settled(100)
        world.stalled(mount, 111)
        assert world.look(120.4) == []
        said = world.look(111 + STALLED_NS / S)
        assert [
            (e.job, e.kind, e.node, e.rank, e.acts) for e in said if isinstance(e, ev.VerdictReached)
        ] == [
            ("a", "storage", "n0", None, False), ("b", "storage", "", None, False)
        ]  # fmt: skip
        text = said[0].because.text  # type: ignore[union-attr]
        assert str(mount.place) in text and "server:/data" in text and "node n0" in text
        assert world.look(160) == []
        mount.answer()
        world.settled(170)
        over = incidents(world.telling.view)
        assert [(one.job, one.kind, one.onset_ns) for one in over] == [("a", "storage", 111 * S), ("b", "storage", 111 * S)]  # fmt: skip
        assert all(one.resumed_ns is not None and one.resumed_ns >= 170 * S for one in over)
        world.watch.close()


@needs.root
def test_the_next_controller_does_not_take_a_question_for_an_answer(tmp_path: Path) -> None:
    world = World(tmp_path / "locks")
    with stubborn(tmp_path / "far") as mount:
        world.telling.submit("a", workdir=str(mount.place)).place("a", "n0/0")
        world.stalled(mount, 100)
        assert len(world.look(110)) == 1
        world.watch = StorageWatch(tmp_path / "other locks")  # nobody is left behind there
        assert world.look(111) == []
        assert world.look(130) == []
        mount.answer()
        world.settled(131)
        assert world.telling.view.jobs["a"].attempts[0].verdict is None
        world.watch.close()


def test_where_a_rank_is_known_to_wait_for_storage_its_mount_is_not_a_second_incident() -> None:
    telling = Telling(2).at(100).submit("job").place("job", "n0/0").at(200)
    waits = ev.VerdictReached("job", 1, "storage", 0, 0, False, Reason("disk_wait", "rank 0 waits"), 0, "n0")
    telling.tell(waits)
    assert list(mount_stalls(telling.view, "job", {"/data/x": (FILER, MountState(100 * S))}, 200 * S)) == []


@pytest.mark.parametrize("answer", [MountState(None), MountState(190 * S + 1), MountState(195 * S, 5)])
def test_a_mount_that_answers_or_is_only_late_is_no_fault(answer: MountState) -> None:
    telling = Telling(2).at(100).submit("job").place("job", "n0/0").at(200)
    assert list(mount_stalls(telling.view, "job", {"/data/x": (FILER, answer)}, 200 * S)) == []


def test_an_error_that_lasts_is_told_in_words() -> None:
    telling = Telling(2).at(100).submit("job").place("job", "n0/0").at(200)
    [said] = mount_stalls(telling.view, "job", {"/data/x": (FILER, MountState(150 * S, 107))}, 200 * S)
    assert isinstance(said, ev.VerdictReached)
    assert said.because.text == (
        "the storage mounted on /data (nfs4, filer:/a) answers only: "
        "Transport endpoint is not connected for 50 s (node n0)"
    )


def test_who_cannot_ask_says_so_and_a_node_without_jobs_is_not_concerned(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.watch._mounts._table = tmp_path / "no table"
    assert world.look(100) == []
    world.telling.submit("a").place("a", "n0/0")
    [blind] = world.look(101)
    assert isinstance(blind, ev.WatchSet)
    assert (blind.node, blind.detector, "no table" in blind.why_not) == ("n0", "storage", True)
    assert world.look(102) == []
    world.telling.end("a", 0, "succeeded").done("a", "succeeded")
    [sees] = world.look(103)
    assert isinstance(sees, ev.WatchSet) and (sees.node, sees.why_not) == ("n0", "")
    assert ASK_EVERY_NS == STALLED_NS


def test_the_directories_of_a_job_are_where_it_works_and_where_it_saves() -> None:
    assert directories_of(JobSpec(("x",), workdir="/w/a")) == ("/w/a",)
    assert directories_of(JobSpec(("x",), workdir="/w/a", checkpoint_path="../ck")) == ("/w/a", "/w/a/../ck")
    assert directories_of(JobSpec(("x",), workdir="/w", checkpoint_path="/data/ck")) == ("/w", "/data/ck")
