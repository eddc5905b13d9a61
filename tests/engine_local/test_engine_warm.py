"""Ranks that fork from a warm Python are what they would be if Python had been started for them."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine_local.local_gangs import Gang, Machine
from unidle.engine.local import launch
from unidle.engine.local.ranks.supervisor.script_runner import script_of, wait_for_listener
from unidle.engine.local.ranks.warm_pool import WarmPool
from unidle.engine.protocol import StartGang
from unidle.jobs import JobSpec, RankPlace, Restart
from waiting import wait_until

TELL = """
import json, os, signal, sys, threading
varies = ("UNIDLE_RANK_FD", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "UNIDLE_JOB", "UNIDLE_RUN_ID")
told = {
    "argv": sys.argv[:1], "path": sys.path, "cwd": os.getcwd(), "name": __name__, "file": __file__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "env": {k: v for k, v in os.environ.items() if k not in varies},
    "threads": [t.name for t in threading.enumerate()],
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:3],
    "count": len(os.listdir("/proc/self/fd")),
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "signals": {n: str(signal.getsignal(n)) for n in (1, 2, 3, 10, 13, 15, 17, 25)},
    "masked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "stdin": os.readlink("/proc/self/fd/0"), "unbuffered": sys.stdout.write_through,
    "policy": os.sched_getscheduler(0), "executable": sys.executable, "nice": os.nice(0),
}
json.dump(told, open(sys.argv[1], "w"), sort_keys=True)
"""


def command_of(
    script: Path, *arguments: object, ranks: int = 1, job: str = "job", env: dict[str, str] | None = None
) -> StartGang:
    spec = JobSpec(
        command=(sys.executable, "-u", script.name, *map(str, arguments)), ranks=ranks, workdir=str(script.parent),
        restart=Restart(warm=True), env=env or {},
    )  # fmt: skip
    places = tuple(RankPlace(rank, "left", (f"left/{rank}",)) for rank in range(ranks))
    return StartGang(job, 1, spec, places)


def warmed(machine: Machine, command: StartGang, modules: Sequence[str] = ("json",)) -> WarmPool:
    """The machine's engine with a Python ready for the command."""
    if machine.engine._starts.warm is not None:  # it began one of its own for a gang that ran long
        machine.engine._starts.warm.close()
    pool = machine.engine._starts.warm = WarmPool(modules)
    env = launch.common_environment(command, os.environ)
    assert pool.prepare(command.spec.command, env) == ""
    [zygote] = pool._zygotes.values()

    def ready() -> bool:
        pool.is_near(command.spec.command, env)  # hurries it on: else it waits for an idle core
        return pool._is_ready(zygote)

    wait_until(ready, timeout_s=150, what="a warm Python")
    return pool


def run(machine: Machine, command: StartGang, timeout_s: float = 60.0) -> Gang:
    gang = machine.begin(command)
    gang.ends(timeout_s)
    return gang


def is_warm(pid: int) -> bool:
    return b"_unidle_local" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_start_waits_for_a_warm_python_that_is_on_its_way(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text("import time; time.sleep(1.5)")
    (tmp_path / "script.py").write_text("import sys; print('slow_import' in sys.modules)")
    command = command_of(tmp_path / "script.py", env={"PYTHONPATH": str(tmp_path)})
    pool = machine.engine._starts.warm = WarmPool(("slow_import",))
    pool.prepare(command.spec.command, launch.common_environment(command, os.environ))
    assert run(machine, command).log() == "True\n"


def test_an_engine_that_is_told_what_to_import_starts_all_ranks_of_a_gang_from_one_python(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "slow_import.py").write_text("import os, time\ntime.sleep(1.5)\nhere = os.getpid()\n")
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint(os.getpid() != sys.modules['slow_import'].here)\n"
    )
    command = command_of(tmp_path / "script.py", ranks=3, env={"PYTHONPATH": str(tmp_path)})
    machine.engine.import_once(("slow_import",))
    gang = run(machine, command)
    assert [gang.log(rank) for rank in range(3)] == ["True\n"] * 3
    assert machine.engine._starts.warm is not None and len(machine.engine._starts.warm._zygotes) == 1


def test_a_script_cannot_tell_that_it_was_started_warm(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text(TELL)
    cold = command_of(script, tmp_path / "cold.json", job="cold", env={"MINE": "1"})
    warm = command_of(script, tmp_path / "warm.json", job="warm", env={"MINE": "1"})
    run(machine, cold)
    warmed(machine, warm)
    gang = run(machine, warm)
    assert gang.codes() == [0], gang.log()
    told = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("cold", "warm")}
    assert told["warm"] == told["cold"]


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("print('done')", 0, "done"),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no data')", 1, "no data"),
        ("raise KeyError('lost')", 1, "KeyError: 'lost'"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.kill(os.getpid(), 2); import time; time.sleep(9)", -2, "KeyboardInterrupt"),
        ("import os; os._exit(7)", 7, ""),
        ("def f(:", 1, "SyntaxError"),
        ("import atexit; atexit.register(print, 'bye')", 0, "bye"),
        (
            "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
            0,
            "late",
        ),
    ],
)
def test_a_warm_script_ends_as_a_cold_one(
    machine: Machine, tmp_path: Path, source: str, code: int, says: str
) -> None:
    script = tmp_path / "end.py"
    script.write_text(source + "\n")
    logs = []
    for job in ("cold", "warm"):
        command = command_of(script, job=job)
        if job == "warm":
            warmed(machine, command)
        gang = run(machine, command)
        assert gang.codes() == [code], gang.log()
        logs.append(gang.log())
    assert logs[1] == logs[0]
    assert says in logs[1]


EARLY = """
import os, time
from torch.distributed.rendezvous import rendezvous
rank, asks = int(os.environ["RANK"]), "asks" + os.environ["UNIDLE_JOB"]
if rank == 1:
    open(asks, "w").close()
while not os.path.exists(asks):
    time.sleep(0.01)
time.sleep(0.5 * (rank == 0))
store, *_ = next(rendezvous("env://"))
store.set(str(rank), "here")
store.get(str(1 - rank))
if rank == 0:
    store.get("gone")
else:
    store.set("gone", "yes")
"""


@pytest.mark.slow
def test_a_rank_that_comes_before_the_store_of_rank_0_asks_once_it_is_there(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    # torch tells of it when it is refused
    env = {"TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    refused = []
    for job in ("cold", "warm"):
        command = command_of(tmp_path / "early.py", ranks=2, job=job, env=env)
        if job == "warm":
            warmed(machine, command, ("torch", "torch.distributed"))
        gang = run(machine, command, 150)  # to import torch cold takes long on a busy machine
        assert gang.codes() == [0, 0], gang.log(0) + gang.log(1)
        refused.append("will retry" in gang.log(1))
    assert refused == [True, False]


def test_waiting_for_a_listener_ends_with_it_and_with_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wait_for_listener("127.0.0.1", port, 60.0)
        with server.accept()[0] as link:
            assert link.recv(1) == b""  # it said nothing, and went
    wait_for_listener("127.0.0.1", port, 0.05)
    wait_for_listener("no such host", port, 60.0)


def test_workers_of_multiprocessing_find_the_script_again(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        "import multiprocessing as mp\n"
        "class Task:\n    def __init__(self, n): self.n = n\n"
        "def double(task): return Task(2 * task.n)\n"
        "if __name__ == '__main__':\n"
        "    for how in ('spawn', 'fork'):\n"
        "        with mp.get_context(how).Pool(2) as pool: print(how, [t.n for t in pool.map(double, map(Task, range(3)))])\n"
    )
    command = command_of(script)
    warmed(machine, command)
    gang = run(machine, command)
    assert gang.codes() == [0], gang.log()
    assert gang.log() == "spawn [0, 2, 4]\nfork [0, 2, 4]\n"


def test_ranks_of_one_warm_python_draw_different_numbers(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "draw.py"
    script.write_text("import random, numpy; print(random.random(), numpy.random.rand())\n")
    command = command_of(script, ranks=3)
    warmed(machine, command, ("numpy", "random"))
    gang = run(machine, command)
    drawn = [number for rank in range(3) for number in gang.log(rank).split()]
    assert len(drawn) == len(set(drawn)) == 6


def test_ranks_outlive_their_warm_python_and_die_with_their_supervisor(
    machine: Machine, tmp_path: Path
) -> None:
    script = tmp_path / "sleep.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    command = command_of(script)
    pool = warmed(machine, command)
    gang = machine.begin(command)
    gang.printed("up")
    pid = gang.last("spawn").pid
    assert pid is not None and is_warm(pid)
    pool.close()
    gang.stop(grace_s=5)
    [end] = gang.ends()
    assert end.code == -15


def test_a_warm_python_that_was_killed_is_replaced_by_a_cold_start(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text("print('hello')\n")
    command = command_of(script)
    pool = warmed(machine, command)
    [zygote] = pool._zygotes.values()
    zygote.process.kill()
    zygote.process.wait()
    gang = run(machine, command)
    assert gang.codes() == [0]
    assert gang.log() == "hello\n"
    assert "did not answer" in zygote.why_not


def test_what_cannot_be_forked_is_refused_with_the_reason(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "threads_at_import.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    script = tmp_path / "hello.py"
    script.write_text("print('hello')\n")
    command = command_of(script, env={"PYTHONPATH": str(tmp_path)})
    pool = machine.engine._starts.warm = WarmPool(("threads_at_import",))
    env = launch.common_environment(command, os.environ)
    wait_until(lambda: pool.prepare(command.spec.command, env), what="a refusal")
    assert "2 threads" in pool.prepare(command.spec.command, env)
    assert run(machine, command).log() == "hello\n"


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["python", "train.py", "--lr", "1"], ("script", "train.py", ["--lr", "1"])),
        (["python3.11", "-u", "-m", "train", "x"], ("module", "train", ["x"])),
        (["python", "-P", "-m", "train", "x"], ("safe module", "train", ["x"])),
        (["python", "-P", "train.py"], None),
        (["python", "-O", "train.py"], None),
        (["python", "-c", "print(1)"], None),
        (["python", "-m"], None),
        (["python"], None),
    ],
)
def test_which_commands_can_be_warm(argv: list[str], found: Any) -> None:
    assert script_of(argv) == found


def test_other_programs_are_never_warm() -> None:
    pool = WarmPool(("json",))
    assert "python SCRIPT" in pool.prepare(["bash", "train.sh"], {"PATH": "/bin:/usr/bin"})
    pool.close()
