"""What every engine does, whatever carries its ranks: one suite, run for each engine of ``engines.py`` as it is.

The hosts of the engine of hosts are network namespaces (``needs.shaping``).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engine_contract.engines import NO_MEANING, RIGS, SCENARIOS, scenario
from engine_contract.rigs import FAILED, EngineRig, S
from unidle.checkpoint.sums import side_file
from unidle.engine.protocol import Engine, WatchGang
from unidle.jobs import Restart


@scenario("finish")
def test_every_rank_starts_once_and_ends_with_its_code(rig: EngineRig) -> None:
    gang = rig.start("finish", 3)
    assert rig.ends(gang) == [0, 0, 0]
    assert [marks[0].k for marks in gang.marks.values()] == ["spawn"] * 3
    assert [rig.begun(gang.command, rank) for rank in range(3)] == [1, 1, 1]


@scenario("fail")
def test_a_rank_that_fails_leaves_its_code_and_the_others_run_until_they_are_stopped(rig: EngineRig) -> None:
    gang = rig.up(rig.start("fail", 2))
    rig.until(lambda: gang.has_ended(1), "the end of rank 1")
    assert gang.marks[1][-1].code == FAILED
    assert not gang.has_ended(0)
    rig.stop(gang, 0)
    assert rig.ends(gang) == [-9, FAILED]


@scenario("kill")
def test_a_killed_rank_is_reported_with_its_signal(rig: EngineRig) -> None:
    gang = rig.up(rig.start("run", 2))
    rig.kill(gang.command, 1)
    rig.until(lambda: gang.has_ended(1), "the end of rank 1")
    assert gang.marks[1][-1].code == -9
    assert not gang.has_ended(0)


@scenario("stop")
def test_a_second_stop_can_only_shorten_the_grace(rig: EngineRig) -> None:
    gang = rig.up(rig.start("stubborn", 2))
    rig.stop(gang, 300)
    rig.pump()
    assert not gang.is_over
    rig.stop(gang, 0)
    rig.stop(gang, 300)
    assert rig.ends(gang) == [-9, -9]


@scenario("stop")
def test_a_stop_of_what_was_never_started_comes_to_an_end(rig: EngineRig) -> None:
    gang = rig.follow(rig.command("run", 2))
    rig.stop(gang, 10)
    assert rig.ends(gang) == [None, None]
    assert [marks[-1].k for marks in gang.marks.values()] == ["lost", "lost"]
    assert [rig.begun(gang.command, rank) for rank in range(2)] == [0, 0]


@scenario("retry")
def test_every_command_can_be_repeated(rig: EngineRig) -> None:
    gang = rig.start("run", 2)
    rig.engine.start(gang.command)
    rig.up(gang)
    rig.engine.start(gang.command)
    for _ in range(3):
        rig.stop(gang, 5)
        rig.pump()
    rig.ends(gang)
    assert [rig.begun(gang.command, rank) for rank in range(2)] == [1, 1]
    for _ in range(2):
        rig.engine.release(*gang.key)
    later = rig.start("finish", 2, attempt=2)
    assert rig.ends(later) == [0, 0]
    for _ in range(2):
        rig.engine.release(*later.key)
        rig.engine.finish("job")
    rig.pump()


@scenario("idle")
def test_a_gang_at_rest_is_reported_as_quiet_and_as_busy_once_one_rank_is_at_work(rig: EngineRig) -> None:
    rig.look()
    gang = rig.up(rig.start("wakes", 2))
    begun_ns = max(marks[0].t for marks in gang.marks.values())
    rig.engine.watch(WatchGang(*gang.key, gang.command.places, S // 2, 50_000))
    rig.until(lambda: gang.uses and gang.uses[-1].use == "quiet", "quiet devices")
    assert begun_ns - S < gang.uses[-1].since_ns
    rig.wake()
    rig.until(lambda: gang.uses[-1].use == "busy", "busy devices")
    assert gang.uses[-1].since_ns > gang.uses[-2].since_ns
    rig.engine.watch(WatchGang(*gang.key, gang.command.places, 0, 50_000))
    rig.stop(gang, 0)
    rig.ends(gang)


@scenario("hang")
def test_a_rank_that_is_stopped_is_seen_where_it_is_with_the_time(rig: EngineRig) -> None:
    rig.look()
    gang = rig.up(rig.start("run", 3))
    rig.until(lambda: gang.vitals, "a look at the gang")
    assert [rank.rank for rank in gang.vitals[-1].ranks] == [0, 1, 2]
    assert {rank.doing for rank in gang.vitals[-1].ranks} == {"sleep"}
    before_ns = gang.vitals[-1].at_ns
    rig.freeze(gang.command, 1, on=True)
    rig.until(lambda: gang.vitals[-1].ranks[1].doing == "stopped", "a rank that is stopped")
    look = gang.vitals[-1]
    assert [rank.doing for rank in look.ranks] == ["sleep", "stopped", "sleep"]
    assert before_ns - S < look.ranks[1].since_ns <= look.at_ns
    assert max(mark.t for marks in gang.marks.values() for mark in marks) < look.at_ns
    rig.freeze(gang.command, 1, on=False)
    rig.until(lambda: gang.vitals[-1].ranks[1].doing != "stopped", "that it goes on")
    for one, other in pairwise(gang.vitals):
        assert one.from_ns <= one.at_ns <= other.from_ns
    rig.kill(gang.command, 2)
    rig.until(lambda: gang.has_ended(2) and len(gang.vitals[-1].ranks) == 2, "a look without it")
    rig.stop(gang, 0)
    rig.ends(gang)


@scenario("adopt")
def test_the_next_controller_adopts_what_runs_and_gets_each_mark_once(rig: EngineRig) -> None:
    gang = rig.up(rig.start("run", 3))
    rig.next_controller(gang)
    rig.pump()
    assert not gang.is_over
    rig.stop(gang, 5)
    rig.ends(gang)
    assert [rig.begun(gang.command, rank) for rank in range(3)] == [1, 1, 1]


@scenario("adopt")
def test_a_start_that_the_controller_did_not_live_to_see_is_completed(rig: EngineRig) -> None:
    """What it wrote to the log is that the attempt begins; whether its command arrived is unknown."""
    gang = rig.start("finish", 3)
    rig.next_controller(gang)
    rig.next_controller(gang)
    assert rig.ends(gang) == [0, 0, 0]
    assert [rig.begun(gang.command, rank) for rank in range(3)] == [1, 1, 1]


@scenario("adopt")
def test_an_attempt_that_no_one_began_is_started_by_the_next_controller(rig: EngineRig) -> None:
    gang = rig.follow(rig.command("finish", 2))
    rig.next_controller(gang)
    assert rig.ends(gang) == [0, 0]


@scenario("two controllers")
def test_an_older_controller_can_neither_start_nor_stop_anything(rig: EngineRig) -> None:
    gang = rig.up(rig.start("run", 2))
    rig.next_controller(gang)

    def act(older: Engine) -> None:
        older.start(gang.command)

    rig.older_controller(gang, act)
    rig.pump()
    assert not gang.is_over
    rig.stop(gang, 5)
    rig.ends(gang)
    assert [rig.begun(gang.command, rank) for rank in range(2)] == [1, 1]


@scenario("clock jump")
def test_a_clock_that_jumps_ends_nothing(rig: EngineRig) -> None:
    gang = rig.up(rig.start("stubborn", 2))
    rig.next_controller(gang, ahead_ns=100 * S)
    rig.pump()
    rig.stop(gang, 300)
    rig.next_controller(gang, ahead_ns=100 * S)
    rig.pump()
    assert not gang.is_over
    rig.stop(gang, 0)
    assert rig.ends(gang) == [-9, -9]


@scenario("slow disk")
def test_marks_that_come_late_come_once(rig: EngineRig) -> None:
    gang = rig.up(rig.start("run", 2))
    rig.stall(gang.command, 1, on=True)
    rig.kill(gang.command, 1)
    rig.until(lambda: not rig.runs(gang.command, 1), "the end of rank 1")
    rig.pump()
    assert not gang.has_ended(1)
    rig.stall(gang.command, 1, on=False)
    rig.until(lambda: gang.has_ended(1), "the end of rank 1")
    assert gang.marks[1][-1].code == -9
    assert not gang.has_ended(0)


@scenario("silence")
def test_a_silent_host_that_answers_in_time_loses_nothing(rig: EngineRig) -> None:
    gang = rig.up(rig.start("run", 2))
    rig.cut(rig.nodes[1], on=True)
    rig.until(lambda: gang.silent, "silence")
    assert gang.silent[0].ranks == (1,)
    assert gang.silent[0].since_ns
    rig.cut(rig.nodes[1], on=False)
    rig.until(lambda: len(gang.silent) > 1, "an end of the silence")
    assert (gang.silent[1].ranks, gang.silent[1].since_ns) == ((1,), 0)
    assert rig.runs(gang.command, 1)
    rig.stop(gang, 5)
    assert None not in rig.ends(gang)


@scenario("cut")
def test_a_host_that_is_cut_off_is_dead_before_its_ranks_are_lost(rig: EngineRig) -> None:
    gang = rig.up(rig.start("run", 2))
    rig.cut(rig.nodes[1], on=True)
    rig.until(lambda: gang.has_ended(1), "the loss of rank 1")
    assert not rig.runs(gang.command, 1)
    end = gang.marks[1][-1]
    assert end.k == "lost"
    assert end.text is not None
    assert f"node {rig.nodes[1]} has been silent for" in end.text
    assert time.strftime("%Y-%m-%d") in end.text
    rig.stop(gang, 0)
    assert rig.ends(gang) == [-9, None]
    rig.engine.release(*gang.key)
    rig.cut(rig.nodes[1], on=False)
    again = rig.start("finish", 2, attempt=2)  # the marks of the first attempt that it still has are dropped
    assert rig.ends(again) == [0, 0]


SAVES = """
mkdir -p ckpt
[ "$RANK$UNIDLE_ATTEMPT" = 01 ] && for n in 1 2; do head -c 10000 /dev/zero > ckpt/tmp && mv ckpt/tmp ckpt/step_$n.bin; done
[ "$UNIDLE_ATTEMPT" = 1 ] && exec sleep 300
ls ckpt > seen.$RANK
"""


@scenario("bad checkpoint")
def test_a_damaged_newest_checkpoint_is_moved_aside_before_any_rank_starts_again(rig: EngineRig) -> None:
    first = rig.command("run")
    spec = replace(first.spec, command=("sh", "-c", SAVES), checkpoint_path="ckpt", quarantine_bad=True)
    gang = rig.follow(replace(first, spec=spec))
    rig.engine.start(gang.command)
    newest = rig.place / "ckpt" / "step_2.bin"
    rig.until(lambda: Path(side_file(str(newest))).exists(), "checksums of what was saved")
    rig.stop(gang, 0)
    rig.ends(gang)
    rig.engine.release(*gang.key)
    state = newest.stat()
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    os.utime(newest, ns=(state.st_atime_ns, state.st_mtime_ns))
    again = rig.follow(replace(gang.command, attempt=2))
    rig.engine.start(again.command)
    assert rig.ends(again) == [0, 0]
    [look] = again.looks
    assert (look.path, look.step) == (str(newest), 2)
    assert look.moved_to
    assert "step_2.bin" in look.moved_to
    assert {(rig.place / f"seen.{rank}").read_text() for rank in range(2)} == {"step_1.bin\n"}


WARM = """
import os, sys, time
with open(f"how.{os.environ['UNIDLE_ATTEMPT']}.{os.environ['RANK']}", "w") as file:
    file.write(f"{'torch' in sys.modules} {os.environ['TORCHELASTIC_RESTART_COUNT']}")
for n in range(1, 100_000):
    print(f"step {n}/100000 loss {1 / n:.4f}", flush=True)
    time.sleep(0.05)
"""


@pytest.mark.slow
@scenario("warm")
def test_ranks_of_a_job_that_asks_for_it_start_again_from_a_warm_python(rig: EngineRig) -> None:
    pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")
    (rig.place / "warm.py").write_text(WARM)
    first = rig.command("run")
    command, env = (sys.executable, "-u", "warm.py"), {"MINE": str(rig.place)}
    spec = replace(first.spec, command=command, restart=Restart(warm=True), env=env)
    gang = rig.follow(replace(first, spec=spec))
    rig.engine.start(gang.command)

    def how(attempt: int, rank: int) -> str:
        path = rig.place / f"how.{attempt}.{rank}"
        return path.read_text() if path.exists() else ""

    rig.until(lambda: how(1, 0) and how(1, 1), "the first start", 60)
    assert [how(1, rank) for rank in range(2)] == ["False 0"] * 2
    rig.until(rig.is_warm, "a warm Python for every rank", 150)
    rig.stop(gang, 0)
    rig.ends(gang)
    rig.engine.release(*gang.key)
    again = rig.follow(replace(gang.command, attempt=2))
    rig.engine.start(again.command)
    rig.until(lambda: how(2, 0) and how(2, 1), "the second start", 60)
    assert [how(2, rank) for rank in range(2)] == ["True 1"] * 2
    rig.stop(again, 5)
    rig.ends(again)


@scenario("parts")
def test_ranks_on_parts_are_bounded_and_what_they_hold_outlives_the_controller_and_no_more(
    rig: EngineRig,
) -> None:
    rig.look()
    gang = rig.follow(rig.on_parts("run", "quota", 250_000))
    rig.engine.start(gang.command)
    rig.up(gang)
    whole = len(os.sched_getaffinity(0)) / 4  # the node has four devices
    assert all(0 < (rig.bounds(gang.command, rank) or 0) <= whole / 4 for rank in range(2))
    held = rig.held()
    assert held and all(name == "job.1.json" for name in held)
    rig.next_controller(gang)
    for _ in range(3):
        rig.pump()
    assert rig.held() == held
    rig.stop(gang, 5)
    rig.ends(gang)
    rig.engine.release(*gang.key)
    rig.until(lambda: not rig.held(), "what it held to be freed")


@scenario("refused part")
def test_a_part_that_cannot_be_made_is_refused_for_every_rank_and_none_begins(rig: EngineRig) -> None:
    rig.look()
    gang = rig.follow(rig.on_parts("run", "mps", 250_000))
    rig.engine.start(gang.command)
    assert rig.ends(gang) == [None, None]
    ends = [marks[-1] for marks in gang.marks.values()]
    assert [(mark.k, mark.info) for mark in ends] == [("lost", {"refused": True})] * 2
    assert all("part" in (mark.text or "") or "MPS" in (mark.text or "") for mark in ends)
    assert [rig.begun(gang.command, rank) for rank in range(2)] == [0, 0]


def test_each_engine_has_each_scenario_or_the_reason_why_not() -> None:
    assert set(NO_MEANING) == set(RIGS)
    for reasons in NO_MEANING.values():
        assert set(reasons) <= set(SCENARIOS)
        assert all(reasons.values())
