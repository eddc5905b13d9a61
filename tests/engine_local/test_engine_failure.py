"""Real ranks that fail: what their supervisors leave of it in the journal."""

from __future__ import annotations

from pathlib import Path

import needs
from engine_local.local_gangs import Machine, python, sh
from unidle.engine.local.ranks.cgroups import ControlGroup
from unidle.engine.local.ranks.supervisor.failure import end_cause
from unidle.engine.local.ranks.supervisor.rotated_log import LastBytes
from unidle.events.marks import LastOutput
from unidle.jobs import Limits

MB = 1_000_000


def last_of(machine: Machine, command: tuple[str, ...], **spec: object) -> LastOutput | None:
    gang = machine.start(command, **spec)
    gang.codes()
    return gang.last("exit").last


def test_the_exit_mark_has_the_error_where_it_was_raised_and_the_last_lines(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "crash.py").write_text("print('hello')\n\ndef f():\n    raise ValueError('seven')\n\nf()\n")
    command = (*python("")[:3], "crash.py")
    last = last_of(machine, command, workdir=str(tmp_path))
    assert last is not None
    assert (last.what, last.where, last.kind, last.sort) == (
        "ValueError: seven",
        "crash.py:4",
        "code",
        "error",
    )
    assert last.lines[0] == "hello" and last.lines[-1] == "ValueError: seven"


def test_a_rank_that_succeeds_or_that_was_told_to_stop_leaves_none(machine: Machine) -> None:
    assert last_of(machine, sh("echo an error: nothing >&2")) is None
    gang = machine.start(sh("echo an error: nothing >&2; sleep 60"), job="other")
    gang.until(lambda: "nothing" in gang.log())
    gang.stop(0)
    gang.codes()
    assert gang.last("exit").last is None


def test_a_flood_before_the_error_does_not_hide_it_and_the_mark_stays_small(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "flood.py").write_text(
        "import os\nfor k in range(300):\n    os.write(1, b'x' * 99_999 + b'\\n'); os.write(2, b'\\x00\\xff' * 5000)\nraise KeyError('k' * 5000)\n"
    )
    gang = machine.start((*python("")[:3], "flood.py"), workdir=str(tmp_path))
    assert gang.codes() == [1]
    last = gang.last("exit").last
    assert last is not None and last.what.startswith("KeyError: 'kkk") and last.where == "flood.py:4"
    journal = (gang.rank(0) / "journal.jsonl").read_bytes().splitlines()
    assert len(journal[-1]) < 8000


def test_the_end_of_a_stream_is_kept_whatever_its_pieces_are() -> None:
    for size in (1, 7, 999, 5000):
        whole, kept = bytes(k % 251 for k in range(20_000)), LastBytes(1000)
        for at in range(0, len(whole), size):
            kept.feed(whole[at : at + size])
        end = kept.take()
        assert 1000 <= len(end) <= 2000 and whole.endswith(end) and kept.cut
    short = LastBytes(1000)
    short.feed(b"all of it")
    assert short.take() == b"all of it" and not short.cut


@needs.cgroups
def test_out_of_memory_names_the_limit_and_who_used_it(machine: Machine) -> None:
    gang = machine.start(python("x = bytearray(300 << 20)"), limits=Limits(memory_bytes=64 * MB))
    assert gang.codes() == [-9]
    info = gang.last("exit").info or {}
    assert info["oom"] is True and info["oom_limit_of"] == "rank"
    assert abs(int(info["oom_limit_bytes"] or 0) - 64 * MB) < 1 << 20


def kernel_log(path: Path, group: str, pid: int, how: str = "Memory cgroup out of memory") -> Path:
    path.write_text(
        f"4,9,5000,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/x/{group},"
        f"task_memcg=/x/{group},task=python3,pid={pid},uid=0\n"
        f"3,9,5001,-;{how}: Killed process {pid} (python3) total-vm:9999kB, anon-rss:4000kB, file-rss:500kB, shmem-rss:96kB, UID:0\n"
    )
    return path


def test_the_kernels_log_says_which_process_of_the_group_was_killed(tmp_path: Path) -> None:
    log = str(kernel_log(tmp_path / "kmsg", "unidle-1/j.1.0", 77))
    paths = {"memory": "/sys/fs/cgroup/memory/unidle-1/j.1.0"}
    assert end_cause.kernel_says(paths, 5, 0, log) == {
        "oom_process": "python3", "oom_machine": False, "oom_used_bytes": 4096 * 1024,
    }  # fmt: skip
    assert end_cause.kernel_says({"memory": "/sys/fs/cgroup/memory/unidle-1/j.1.1"}, 5, 0, log) == {}
    assert end_cause.kernel_says({}, 77, 0, log)["oom_process"] == "python3"
    assert end_cause.kernel_says({}, 77, 6000, log) == {}, "it is of an earlier process with that number"
    assert end_cause.kernel_says({}, 77, 0, str(tmp_path / "none")) == {}


def test_a_kill_for_the_whole_machine_is_not_of_the_jobs_limit(tmp_path: Path) -> None:
    log = str(kernel_log(tmp_path / "kmsg", "unidle-1/j.1.0", 77, "Out of memory"))
    assert (
        end_cause.kernel_says({"memory": "/sys/fs/cgroup/memory/unidle-1/j.1.0"}, 77, 0, log)["oom_machine"]
        is True
    )
    assert end_cause.limit_of(ControlGroup({}), of_machine=True)["oom_limit_of"] == "machine"


def test_the_limit_that_was_used_up_is_the_groups_own_or_one_above(tmp_path: Path) -> None:
    above = tmp_path / "above"
    own = above / "unidle-1" / "j.1.0"
    own.mkdir(parents=True)
    (own / "memory.max").write_text("max\n")
    (above / "memory.max").write_text("2000000\n")
    (above / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    group = ControlGroup({"unified": str(own)})
    assert end_cause.limit_of(group) == {"oom_limit_bytes": 2_000_000, "oom_limit_of": "above"}
    (own / "memory.max").write_text("1000000\n")
    (own / "memory.events").write_text("oom 0\noom_kill 1\n")
    assert end_cause.limit_of(group)["oom_limit_of"] == "above", "the kill was not for its own limit"
    (own / "memory.events").write_text("oom 2\noom_kill 1\n")
    assert end_cause.limit_of(group) == {"oom_limit_bytes": 1_000_000, "oom_limit_of": "rank"}


def test_a_traceback_that_the_program_went_on_after_is_not_why_it_was_killed(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(
        "import os, traceback\ntry:\n    open('/no/cache')\nexcept OSError:\n    traceback.print_exc()\n"
        "while not os.path.exists('go'):\n    pass\nfor k in range(3):\n    print('step', k, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    gang = machine.start((*python("")[:3], "t.py"), workdir=str(tmp_path))
    gang.until(lambda: "FileNotFoundError" in gang.log())
    (tmp_path / "go").touch()
    assert gang.codes() == [-9]
    last = gang.last("exit").last
    assert last is not None and "FileNotFound" not in last.what and last.sort == "line"
    assert last.lines[-1] == "step 2"
