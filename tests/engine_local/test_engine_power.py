"""What the log has of a rank and the disk has not: after a power cut, and after the run directory was deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine_local.local_gangs import Gang, Machine, gang_of, sh
from unidle.engine.local.ranks import process_tree, rundir
from unidle.engine.local.ranks.supervisor.journal import RankJournal
from unidle.engine.protocol import LiveAttempt
from unidle.events.marks import Mark
from waiting import wait_until

STEPS = sh("i=1; while :; do echo step $i; i=$((i+1)); sleep 0.05; done")


def running(machine: Machine, ranks: int = 2) -> Gang:
    """A gang of which the log has several marks of each rank."""
    gang = machine.start(STEPS, ranks, progress_pattern="^step ([0-9]+)")
    gang.until(lambda: all(gang.kinds(rank).count("step") >= 3 for rank in range(ranks)), what="steps")
    return gang


def power_off(machine: Machine, gang: Gang) -> None:
    """All processes of the gang end at once, and the engine knows nothing of it."""
    machine.engine.close()
    for rank in range(len(gang.command.places)):
        pid = json.loads((gang.rank(rank) / rundir.SUPERVISOR).read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: not any(gang.processes(rank) for rank in range(len(gang.command.places))), what="the end"
    )


def cut(journal: Path) -> None:
    """All but the first line and a part of the next."""
    first, second = journal.read_bytes().split(b"\n")[:2]
    journal.write_bytes(first + b"\n" + second[:5])


def zeros(journal: Path) -> None:
    """The length reached the disk, the content did not."""
    journal.write_bytes(bytes(journal.stat().st_size))


def known_of(gang: Gang) -> dict[int, list[Mark]]:
    return {rank: list(marks) for rank, marks in gang.marks.items()}


@pytest.mark.parametrize("damage", [cut, zeros, lambda path: path.write_bytes(b""), Path.unlink])
def test_what_the_log_has_and_the_journal_has_not_is_lost(
    machine: Machine, damage: Callable[[Path], None]
) -> None:
    gang = running(machine)
    power_off(machine, gang)
    for rank in range(2):
        damage(gang.rank(rank) / rundir.JOURNAL)
    later = machine.adopt(gang.command, known_of(gang))  # asserts that ordinals follow those of the log
    assert [mark.k for mark in later.ends()] == ["lost", "lost"]
    assert "a power cut, or deleted files" in (later.last("lost").text or "")
    assert later.kinds().count("spawn") == 1


def test_all_files_but_the_log_lost_is_lost_too(machine: Machine) -> None:
    gang = running(machine)
    power_off(machine, gang)
    shutil.rmtree(machine.run_root)
    later = machine.adopt(gang.command, known_of(gang))
    assert [mark.k for mark in later.ends()] == ["lost", "lost"]
    assert [later.kinds(rank).count("spawn") for rank in range(2)] == [1, 1]


def test_an_end_that_only_the_cut_journal_has_is_reported_by_the_next_engine(machine: Machine) -> None:
    """A controller wrote it to the journal and died before it reached the log: its line has a known number."""
    gang = running(machine, 1)
    power_off(machine, gang)
    cut(gang.rank(0) / rundir.JOURNAL)
    machine.adopt(gang.command, known_of(gang)).ends()
    assert '"lost"' in (gang.rank(0) / rundir.JOURNAL).read_text().splitlines()[1]
    later = machine.adopt(gang.command, known_of(gang))
    assert [mark.k for mark in later.ends()] == ["lost"]


def test_an_exit_in_the_log_stands_whatever_is_left_of_the_files(machine: Machine) -> None:
    gang = machine.start(sh("exit $RANK"), 2)
    assert gang.codes() == [0, 1]
    machine.engine.close()
    shutil.rmtree(machine.run_root)
    later = machine.adopt(gang.command, known_of(gang))
    watches = later.engine._gangs["job", 1].watches
    later.until(lambda: all(watch.state == "ended" for watch in watches))
    assert [later.kinds(rank) for rank in range(2)] == [["spawn", "exit"]] * 2
    assert not gang.rank(0).exists()


def test_a_number_of_another_boot_names_no_process(machine: Machine) -> None:
    """A process of this boot has the number and the start time of a rank of the one before."""
    gang = running(machine, 1)
    power_off(machine, gang)
    with subprocess.Popen(["sleep", "300"]) as other:
        ticks = process_tree.ticks_of(other.pid)
        known = {"pid": other.pid, "ticks": ticks, "boot": "another"}
        (gang.rank(0) / rundir.SUPERVISOR).write_text(json.dumps(known))
        spawn = {"k": "spawn", "t": 1, "pid": other.pid, "ticks": ticks}
        (gang.rank(0) / rundir.JOURNAL).write_text(json.dumps(spawn) + "\n")
        later = machine.adopt(gang.command, known_of(gang))
        try:
            later.until(lambda: later.is_over() or later.engine._gangs["job", 1].watches[0].state == "alive")
            assert later.kinds()[-1] == "lost"
            assert other.poll() is None
        finally:
            other.kill()


def test_ranks_whose_directory_is_gone_never_run_twice(any_machine: Machine, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    gang = any_machine.start(
        sh(f"echo $RANK >> {starts}; echo up; trap '' TERM; sleep 300 & wait; sleep 300"), 2
    )
    gang.spawned()
    gang.printed("up", 0)
    gang.printed("up", 1)
    any_machine.engine.close()
    shutil.rmtree(any_machine.run_root)
    later = any_machine.adopt(gang.command, known_of(gang))
    assert [mark.k for mark in later.ends()] == ["lost", "lost"]
    assert not gang.processes(0) | gang.processes(1)
    assert sorted(starts.read_text().split()) == ["0", "1"]


def test_ranks_that_the_log_does_not_have_yet_are_looked_for_before_a_start(
    any_machine: Machine, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    gang = any_machine.start(sh(f"echo $RANK >> {starts}; echo up; sleep 300"))
    gang.printed("up")
    any_machine.engine.close()
    shutil.rmtree(any_machine.run_root)
    later = any_machine.adopt(gang.command)
    assert [mark.k for mark in later.ends()] == ["lost"]
    assert not gang.processes(0)
    assert starts.read_text().split() == ["0"]


@pytest.mark.parametrize(
    "deleted", [[rundir.SUPERVISOR], [rundir.SUPERVISOR, rundir.CLAIMED, rundir.JOURNAL]]
)
def test_a_rank_whose_supervisor_is_named_by_no_file_is_found_and_stopped(
    any_machine: Machine, deleted: list[str]
) -> None:
    gang = running(any_machine)
    any_machine.engine.close()
    for rank in range(2):
        for name in deleted:
            (gang.rank(rank) / name).unlink()
    later = any_machine.adopt(gang.command, known_of(gang))
    watches = later.engine._gangs["job", 1].watches
    later.until(lambda: all(watch.state == "alive" for watch in watches), what="both supervisors to be found")
    later.stop(0)
    assert [mark.k for mark in later.ends()] == ["exit"] * 2
    assert not gang.processes(0) | gang.processes(1)


def told_once(gang: Gang) -> bool:
    """Whether the marks are those of the journal: each of them, and once."""
    lines = (gang.rank(0) / rundir.JOURNAL).read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Mark) for line in lines] == gang.marks[0]


def test_a_journal_that_is_deleted_under_a_live_supervisor_is_written_again(machine: Machine) -> None:
    gang = running(machine, 1)
    (gang.rank(0) / rundir.JOURNAL).unlink()
    seen = len(gang.kinds(0))
    gang.until(lambda: len(gang.kinds(0)) > seen + 2 and (gang.rank(0) / rundir.JOURNAL).exists())
    gang.stop(0)
    assert [mark.k for mark in gang.ends()] == ["exit"]
    assert told_once(gang)


def test_the_engine_that_started_a_rank_sees_its_end_though_its_directory_was_deleted(
    machine: Machine, tmp_path: Path
) -> None:
    gang = machine.start(sh(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3"))
    gang.spawned()
    shutil.rmtree(gang.rank(0))
    (tmp_path / "go").touch()
    assert gang.codes() == [3]


def test_the_next_engine_gets_a_deleted_journal_of_a_silent_rank_from_its_supervisor(
    any_machine: Machine, tmp_path: Path
) -> None:
    gang = any_machine.start(sh(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 3"))
    gang.spawned()
    any_machine.engine.close()
    (gang.rank(0) / rundir.JOURNAL).unlink()
    later = any_machine.adopt(gang.command, known_of(gang))
    wait_until((gang.rank(0) / rundir.JOURNAL).exists, what="the journal")
    (tmp_path / "go").touch()
    assert later.codes() == [3]
    assert told_once(later)


def test_an_attempt_of_which_nothing_is_known_starts_after_a_power_cut(machine: Machine) -> None:
    """The decision to start it is in the log, and nothing of it ran or is left."""
    command = gang_of(sh("exit 3"))
    machine.engine.close()
    later = machine.follow(command, machine.new_engine())
    later.engine.adopt([LiveAttempt(command, (0,), (False,))])
    assert later.codes() == [3]


def test_marks_that_cost_work_when_lost_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "runs" / "job" / "1" / "rank0"
    place.mkdir(parents=True)
    synced: list[str] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def seen(fd: int, real: Callable[[int], None] = real) -> None:
            synced.append(str(Path(f"/proc/self/fd/{fd}").readlink().relative_to(tmp_path)))
            real(fd)

        monkeypatch.setattr(os, name, seen)
    journal = RankJournal(f"{place}/journal.jsonl", f"{place}/reserve")
    for kind in ("spawn", "step", "note"):
        journal.add({"k": kind, "t": 1})
        journal.sync()
    assert synced == []
    journal.add({"k": "saved", "t": 2, "n": 1})
    journal.sync()
    names = ["runs/job/1/rank0/journal.jsonl", "runs/job/1/rank0", "runs/job/1", "runs/job", "runs"]
    assert synced == names
    journal.sync()
    assert synced == names
    journal.add({"k": "exit", "t": 3, "code": 0})
    journal.sync()
    assert synced == [*names, names[0]]
    journal.close()


def delete(rank: Path) -> None:
    shutil.rmtree(rank)


def make_lock_unreadable(rank: Path) -> None:
    (rank / rundir.LOCK).unlink()
    (rank / rundir.LOCK).mkdir()  # opening it fails, as with a disk that reports an I/O error


@pytest.mark.parametrize("damage", [delete, make_lock_unreadable])
def test_a_lock_that_cannot_be_opened_does_not_keep_a_dead_supervisors_rank_from_its_end(
    machine: Machine, damage: Callable[[Path], None]
) -> None:
    gang = machine.start(sh("exec sleep 300"), 2)
    gang.spawned()
    supervisor = json.loads((gang.rank(0) / rundir.SUPERVISOR).read_text())["pid"]
    damage(gang.rank(0))
    os.kill(supervisor, signal.SIGKILL)
    gang.until(lambda: gang.is_over_of(0), what="the rank to be lost")
    assert gang.kinds(0)[-1] == "lost"
    assert not gang.processes(0)
    assert not gang.is_over_of(1)
