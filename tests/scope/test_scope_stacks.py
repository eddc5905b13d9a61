"""Real processes that hang are looked at as the controller does it: one process, one line of orders, two of answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import needs
from unidle.control.gangs.stacks import found
from unidle.engine.local.ranks import process_tree
from unidle.events.guard import StacksTaken
from unidle.scope.stack_process import stacks_in
from waiting import wait_until

LOOK = (sys.executable, "-P", "-m", "unidle.scope.stacks")


@contextmanager
def gang(
    root: Path, commands: Sequence[Sequence[str]], user: int | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Ranks with the journals that their supervisors would have written."""
    ranks = []
    try:
        for rank, command in enumerate(commands):
            env = os.environ | {"RANK": str(rank), "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, cwd=None if user else root, start_new_session=True, user=user
            )  # fmt: skip
            ranks.append(process)
            place = root / "job" / "1" / f"rank{rank}"
            place.mkdir(parents=True)
            spawn = {"k": "spawn", "t": 1, "pid": process.pid, "ticks": process_tree.ticks_of(process.pid)}
            (place / "journal.jsonl").write_text(json.dumps(spawn) + "\n" + '{"k": "step", "t": 2}\n' * 3)
        yield ranks
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def look(root: Path, ranks: int, *before: str, command: Sequence[str] = LOOK) -> StacksTaken:
    orders = json.dumps({"root": str(root), "job": "job", "attempt": 1, "ranks": ranks}) + "\n"
    done = subprocess.run(
        (*before, *command), input=orders.encode(), capture_output=True, check=True, timeout=60
    )
    assert done.stderr == b""
    assert done.stdout.count(b"\n") == 2
    return found("job", 1, ranks, stacks_in(done.stdout), "")


def waits_in(process: subprocess.Popen[bytes], file: Path) -> None:
    wait_until(file.exists, 60, f"process {process.pid} at its place")


GLOO = """
import os, pathlib, sys, threading
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", rank=rank, world_size=4, init_method="tcp://127.0.0.1:" + sys.argv[1])
class Items:
    def __len__(self): return 8
    def __getitem__(self, index): return self.load()
    def load(self):
        pathlib.Path("at2").touch()
        return os.read(os.pipe()[0], 1)
def guarded(lock):
    with lock:
        with lock: pass
def main():
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 2: next(iter(DataLoader(Items(), num_workers=1)))
    pathlib.Path(f"at{rank}").touch()
    if rank == 3: guarded(threading.Lock())
    dist.all_reduce(x)
main()
"""


@pytest.mark.slow
def test_ranks_outside_of_the_collective_are_found_in_a_real_gang(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GLOO)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with gang(tmp_path, [[sys.executable, "train.py", port]] * 4) as ranks:
        for rank, process in enumerate(ranks):
            waits_in(process, tmp_path / f"at{rank}")
        taken = wait_until(
            lambda: (now := look(tmp_path, 4)).odd == (2, 3) and "(load)" in now.because.text and now, 60
        )
        places = {rank: stack for stack in taken.stacks for rank in stack.ranks}
        assert places[0].state == "collective" and places[0] is places[1]
        assert places[0].at == "in all_reduce at train.py:22 (main)"
        worker = "at train.py:12 (load), waits in read pipe"
        assert (places[2].state, places[2].at) == (
            "data",
            f"in __next__ at train.py:19 (main), whose worker is {worker}",
        )
        assert (places[3].state, places[3].at) == ("lock", "at train.py:15 (guarded), waits in futex")
        assert any(
            frame.startswith("Items.load (") and frame.endswith("train.py:12)") for frame in places[2].frames
        )
        os.kill(ranks[1].pid, signal.SIGSTOP)
        wait_until(lambda: (process_tree.stat_of(ranks[1].pid) or "?")[0] == "T")
        stopped = look(tmp_path, 4)
        assert stopped.odd == (1, 2, 3)
        assert (
            "rank 1 stopped by a signal or debugger (in all_reduce at train.py:22 (main))"
            in stopped.because.text
        )
        assert process_tree.stat_of(ranks[1].pid) is not None and all(
            process.poll() is None for process in ranks
        )


THREAD = """
import pathlib, sys, threading
def work():
    pathlib.Path("at").touch()
    sys.stdin.buffer.read(1)
worker = threading.Thread(target=work)
worker.start()
worker.join()
"""


def test_a_main_thread_that_waits_for_another_is_not_where_the_rank_is(tmp_path: Path) -> None:
    with gang(
        tmp_path, [[sys.executable, "-c", f"exec(compile({THREAD!r}, '{tmp_path}/t.py', 'exec'))"]]
    ) as ranks:
        waits_in(ranks[0], tmp_path / "at")
        wait_until(lambda: "t.py:5 (work), waits in read pipe" in look(tmp_path, 1).because.text, 60)


def test_a_gang_of_shells_shows_the_program_that_it_waits_for(tmp_path: Path) -> None:
    reads = "import pathlib, sys; pathlib.Path('at').touch(); sys.stdin.read()"
    commands = [["bash", "-c", "sleep 1000; true"], ["bash", "-c", f'{sys.executable} -c "{reads}"; true']]
    with gang(tmp_path, commands) as ranks:
        waits_in(ranks[1], tmp_path / "at")
        taken = wait_until(lambda: "read pipe" in (now := look(tmp_path, 2)).because.text and now, 60)
        assert [stack.ranks for stack in taken.stacks] == [(0,), (1,)]
        assert "of sleep, waits in sleep" in taken.stacks[0].at
        assert "at <string>:1 (<module>)" in taken.stacks[1].at


def test_a_rank_that_has_ended_is_named(tmp_path: Path) -> None:
    with gang(tmp_path, [["sleep", "1000"], ["true"], ["sleep", "1000"]]) as ranks:
        ranks[1].wait()
        assert look(tmp_path, 3).odd == (1,)


@pytest.mark.skipif(not needs.is_root(), reason="another user's process needs root to be made")
def test_without_the_right_to_read_a_process_the_answer_gives_state_and_reason(tmp_path: Path) -> None:
    with gang(tmp_path, [["sleep", "1000"]] * 2, user=65534) as ranks:
        os.kill(ranks[1].pid, signal.SIGSTOP)
        wait_until(lambda: (process_tree.stat_of(ranks[1].pid) or "?")[0] == "T")
        taken = look(tmp_path, 2, "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    assert [(stack.ranks, stack.state, stack.frames) for stack in taken.stacks] == [
        ((0,), "waiting", ()),
        ((1,), "stopped", ()),
    ]
    assert "may not be read" in taken.stacks[0].why_not or "belongs to user" in taken.stacks[0].why_not
    assert taken.odd == (1,) and "no Python lines" in taken.because.text


def test_without_the_native_part_the_answer_gives_state_and_reason(tmp_path: Path) -> None:
    program = "import sys; sys.modules['unidle_scope'] = None; from unidle.scope.stacks import main; main()"
    with gang(tmp_path, [["bash", "-c", "sleep 1000; true"], ["sleep", "1000"]]):
        taken = wait_until(
            lambda: (
                (now := look(tmp_path, 2, command=(sys.executable, "-c", program)))
                .stacks[0]
                .at.startswith("in sleep")
                and now
            )
        )
    assert {stack.state for stack in taken.stacks} == {"waiting"}
    assert "native part is not installed" in taken.because.text
