"""Controllers and supervisors die at any point: no rank runs twice, none is forgotten."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine_local.local_gangs import FLEET, Machine, gang_of, python, sh
from unidle.clock import RealClock, boot_id
from unidle.engine.local.engine import LocalEngine
from unidle.engine.local.ranks import cgroups, process_tree, rundir
from unidle.engine.local.ranks.spawn import SUPERVISOR_PATH
from unidle.engine.protocol import LiveAttempt, StartGang
from unidle.errors import BadInput
from waiting import wait_until

# A controller that starts a gang and is killed by its own hand at the n-th function call inside of
# the engine; it prints how many calls there were when it gets through.
CONTROLLER = """
import os, pickle, signal, sys
from unidle.clock import RealClock
from unidle.engine.local.engine import LocalEngine
root, fleet, command, die_at = pickle.loads(sys.stdin.buffer.read())
engine = LocalEngine(root, fleet, RealClock())
engine.capabilities()
calls = 0
def count(frame, event, what):
    global calls
    if event in ("call", "c_call"):
        calls += 1
        if calls == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
sys.setprofile(count)
engine.start(command)
for _ in range(4):
    engine.poll()
    engine.wait(None)
sys.setprofile(None)
print(calls, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def dead_controller(root: Path, command: StartGang, die_at: int) -> int:
    """Let a controller start the gang and die; returns the calls it made where it came to the end."""
    asked = pickle.dumps((root, FLEET, command, die_at))
    done = subprocess.run([sys.executable, "-c", CONTROLLER], input=asked, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    return int(done.stdout or 0)


def test_a_controller_killed_at_any_step_of_a_start_is_taken_over(machine: Machine, tmp_path: Path) -> None:
    """Each try kills the controller at another call; every rank must still run exactly once."""
    script = sh(f"echo $RANK $MASTER_PORT >> {tmp_path}/$UNIDLE_ATTEMPT; sleep 0.1; exit $RANK")
    calls = dead_controller(machine.run_root, gang_of(script, 2, attempt=1), 0)
    assert calls > 100
    assert machine.adopt(gang_of(script, 2, attempt=1)).codes() == [0, 1]
    chosen = random.Random(3)
    points = [chosen.randrange(calls * k // 20, calls * (k + 1) // 20) + 1 for k in range(20)]
    gangs = []
    for attempt, die_at in enumerate(points, start=2):
        command = gang_of(script, 2, attempt=attempt)
        dead_controller(machine.run_root, command, die_at)
        gangs.append((die_at, machine.adopt(command)))
    for die_at, gang in gangs:
        assert gang.codes() == [0, 1], f"killed at call {die_at}"
        ran = sorted(line.split() for line in (tmp_path / str(gang.command.attempt)).read_text().splitlines())
        assert [rank for rank, _ in ran] == ["0", "1"], f"killed at call {die_at}"
        assert len({port for _, port in ran}) == 1, f"killed at call {die_at}"
        assert [gang.kinds(rank) for rank in range(2)] == [["spawn", "exit"]] * 2


def test_the_next_engine_learns_what_happened_meanwhile(machine: Machine) -> None:
    gang = machine.start(sh("echo up; sleep 0.4; exit $RANK"), 3)
    gang.spawned()
    known = {rank: list(marks) for rank, marks in gang.marks.items()}
    machine.engine.close()
    wait_until(lambda: all('"exit"' in (gang.rank(r) / rundir.JOURNAL).read_text() for r in range(3)))
    later = machine.adopt(gang.command, known)
    assert later.codes() == [0, 1, 2]
    assert [later.kinds(rank) for rank in range(3)] == [["spawn", "exit"]] * 3


def test_the_next_engine_can_stop_what_it_adopts(any_machine: Machine) -> None:
    gang = any_machine.start(sh("trap '' TERM; sleep 300 & echo up; wait; sleep 300"), 2)
    gang.printed("up", 0)
    gang.printed("up", 1)
    any_machine.engine.close()
    later = any_machine.follow(gang.command, any_machine.new_engine())
    later.stop(0.1)
    assert later.codes() == [-9, -9]
    assert not later.processes(0) | later.processes(1)


def test_a_stop_outlives_the_controller_that_asked(machine: Machine) -> None:
    gang = machine.start(sh("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    gang.printed("up")
    gang.stop(0.2)
    machine.engine.close()
    wait_until(lambda: '"exit"' in (gang.rank(0) / rundir.JOURNAL).read_text(), what="the exit mark")
    assert machine.adopt(gang.command).codes() == [-9]


def test_adopting_starts_what_was_never_begun_unless_it_is_to_be_stopped(
    machine: Machine, tmp_path: Path
) -> None:
    commands = [gang_of(sh(f"echo x >> {tmp_path}/{job}"), 2, job=job) for job in ("wanted", "unwanted")]
    engine = machine.new_engine()
    gangs = [machine.follow(command, engine) for command in commands]
    engine.adopt([LiveAttempt(command, (0, 0)) for command in commands])
    gangs[1].stop(5)
    assert gangs[0].codes() == [0, 0]
    assert [mark.k for mark in gangs[1].ends()] == ["lost", "lost"]
    assert (tmp_path / "wanted").read_text() == "x\n" * 2 and not (tmp_path / "unwanted").exists()


def test_a_rank_whose_supervisor_is_killed_is_lost_and_gone(any_machine: Machine) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\nprint('up', flush=True)\ntime.sleep(300)"
    gang = any_machine.start(python(daemon), 2)
    gang.spawned()
    gang.until(lambda: gang.log(0).count("up") == 2)
    supervisor = json.loads((gang.rank(0) / rundir.SUPERVISOR).read_text())["pid"]
    os.kill(supervisor, signal.SIGKILL)
    gang.until(lambda: gang.kinds(0)[-1] == "lost")
    assert not gang.processes(0)
    assert gang.kinds(1) == ["spawn"]
    later = any_machine.adopt(gang.command)
    later.until(lambda: later.kinds(0)[-1:] == ["lost"])
    assert later.kinds(0) == ["spawn", "lost"]


def test_a_supervisor_that_fails_says_why_in_the_lost_mark(machine: Machine, tmp_path: Path) -> None:
    command = gang_of(sh("true"))
    directory = machine.run_root / "job" / "1" / "rank0"
    (directory / rundir.LOG).mkdir(parents=True)
    gang = machine.follow(command)
    gang.engine.start(command)
    assert "Is a directory" in (gang.ends()[0].text or "")


def test_a_stopped_supervisor_does_not_keep_a_stop_from_working(machine: Machine) -> None:
    gang = machine.start(sh("exec sleep 300"))
    gang.spawned()
    os.kill(json.loads((gang.rank(0) / rundir.SUPERVISOR).read_text())["pid"], signal.SIGSTOP)
    gang.stop(5)
    assert gang.codes() == [-15]


def test_a_second_supervisor_of_a_rank_leaves_it_alone(machine: Machine, tmp_path: Path) -> None:
    gang = machine.start(sh(f"echo ran >> {tmp_path}/ran; sleep 0.5"))
    gang.spawned()
    again = [sys.executable, "-I", "-S", "-E", SUPERVISOR_PATH, str(gang.rank(0))]
    assert subprocess.run(again).returncode == 0
    assert gang.codes() == [0]
    assert subprocess.run(again).returncode == 0
    assert (tmp_path / "ran").read_text() == "ran\n" and gang.kinds() == ["spawn", "exit"]


def test_ranks_of_an_attempt_that_the_machine_did_not_survive_are_not_started(machine: Machine) -> None:
    gang = machine.start(sh("exec sleep 300"), 2)
    gang.spawned()
    gang.stop(0)
    gang.ends()
    for rank in range(2):
        pid = json.loads((gang.rank(rank) / rundir.SUPERVISOR).read_text())["pid"]
        wait_until(lambda pid=pid: not process_tree.is_live(pid), what="the end of the supervisor")  # type: ignore[misc]
    path = gang.directory / rundir.GANG
    path.write_text(path.read_text().replace(boot_id(), "another-boot"))
    for name in (rundir.CLAIMED, rundir.JOURNAL):
        (gang.rank(1) / name).unlink()
    (gang.rank(1) / rundir.STOP).unlink()
    later = machine.adopt(gang.command)
    later.until(later.is_over)
    assert (later.kinds(0)[-1], later.kinds(1)) == ("exit", ["lost"])
    assert "restarted" in (later.last("lost", 1).text or "")


def test_groups_of_a_dead_supervisor_are_removed(machine: Machine) -> None:
    gang = machine.start(sh("exec sleep 300"))
    gang.spawned()
    machine.engine.close()
    groups = [
        Path(p) for p in cgroups.group_paths(machine.engine._groups, machine.engine._name, "job.1.0").values()
    ]
    os.kill(json.loads((gang.rank(0) / rundir.SUPERVISOR).read_text())["pid"], signal.SIGKILL)
    later = machine.adopt(gang.command)
    assert later.ends()[0].k == "lost"
    later.until(lambda: not any(path.exists() for path in groups), what="the groups to be removed")


def test_release_forgets_an_attempt_and_keeps_its_files(machine: Machine) -> None:
    gang = machine.start(sh("echo kept"))
    gang.ends()
    machine.engine.release("job", 1)
    assert machine.engine.poll() == []
    assert gang.log() == "kept\n"


def test_a_job_name_that_is_no_directory_name_is_refused(machine: Machine) -> None:
    for name in ("", "..", "a/b", ".hidden"):
        with pytest.raises(BadInput, match="job"):
            machine.engine.start(gang_of(sh("true"), job=name))


def test_wait_returns_at_the_time_it_is_given(tmp_path: Path) -> None:
    clock = RealClock()
    engine = LocalEngine(tmp_path, FLEET, clock)
    until_ns = clock.now_ns() + 20_000_000
    engine.wait(until_ns)
    engine.wait(until_ns)
    assert engine.poll() == []
    engine.close()
