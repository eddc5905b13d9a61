"""Faults of a simulated disk under real processes: nothing acknowledged is lost, and no rank runs twice."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import needs
import nightly
from disk import checks
from disk.client import RANK
from disk.faults import ROLES, Fault, of_seed
from disk.machine import Machine
from disk.model import Op, after_cut, parse
from disk.run import counts, programs_in, run_seeds
from disk.warm import Programs
from unidle.store import tools
from unidle.store.open import open_store

ROOT = "/disk"


def tree(*ops: Op, seed: int) -> dict[str, bytes | None]:
    return after_cut(iter(ops), ROOT, random.Random(seed))


def write(path: str, data: bytes, offset: int = 0, inode: int = 1) -> Op:
    return Op("W", path, inode=inode, offset=offset, data=data)


NEW = (Op("C", "/disk/a", inode=1), write("/disk/a", b"one"))
SYNCED = (*NEW, Op("S", "/disk/a", inode=1), Op("S", ROOT))
SEEDS = range(200)


def test_what_is_synced_is_there_after_each_cut() -> None:
    assert all(tree(*SYNCED, seed=seed) == {"/disk/a": b"one"} for seed in SEEDS)


def test_a_file_without_a_sync_is_lost_or_empty_or_whole() -> None:
    found = [tree(*NEW, seed=seed).get("/disk/a", b"lost") for seed in SEEDS]
    assert set(found) == {b"lost", b"", b"one"}


def test_a_synced_file_without_a_sync_of_its_directory_may_lose_its_name_only() -> None:
    found = [tree(*SYNCED[:3], seed=seed) for seed in SEEDS]
    assert {tuple(tree.values()) for tree in found} == {(), (b"one",)}


def test_writes_are_lost_in_any_order_and_torn_at_sectors() -> None:
    later = (write("/disk/a", b"x" * 1024), write("/disk/a", b"y" * 10, 2000))
    found = {bytes(tree(*SYNCED, *later, seed=seed)["/disk/a"] or b"") for seed in range(600)}
    zeros = bytes(2000 - 3)
    assert b"one" in found
    assert b"one" + zeros + b"y" * 10 in found  # the second without the first
    assert b"x" * 512 in found


def test_a_failed_sync_leaves_its_writes_in_doubt_also_after_one_that_succeeds() -> None:
    later = (write("/disk/a", b"two"), Op("F", "/disk/a", inode=1), Op("S", "/disk/a", inode=1))
    assert {tree(*SYNCED, *later, seed=seed)["/disk/a"] for seed in SEEDS} == {b"one", b"two"}


def test_what_is_written_and_synced_after_a_failed_sync_is_on_the_disk() -> None:
    failed = (write("/disk/a", b"two"), Op("F", "/disk/a", inode=1))
    again = (write("/disk/a", b"tri"), Op("S", "/disk/a", inode=1))
    assert {tree(*SYNCED, *failed, *again, seed=seed)["/disk/a"] for seed in SEEDS} == {b"tri"}


def test_a_rename_without_a_sync_of_its_directory_has_happened_or_not() -> None:
    later = (
        Op("C", "/disk/b", inode=2), write("/disk/b", b"new", inode=2), Op("S", "/disk/b", inode=2),
        Op("R", "/disk/b", "/disk/a"),
    )  # fmt: skip
    assert {tree(*SYNCED, *later, seed=seed)["/disk/a"] for seed in SEEDS} == {b"one", b"new"}


def test_the_same_seed_is_the_same_fault_and_seeds_cover_all_kinds() -> None:
    assert [of_seed(seed) for seed in range(100)] == [of_seed(seed) for seed in range(100)]
    kinds = {of_seed(seed).name for seed in range(2000)}
    assert {
        "write torn",
        "write full",
        "sync eio",
        "sync eio, then cut",
        "name cut-after",
        "open eio",
    } <= kinds


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with programs_in(tmp_path_factory.mktemp("recorder")) as found:
        yield found


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    made: list[Machine] = []
    yield made
    for machine in made:
        machine.close()


@pytest.mark.parametrize(("kind", "size"), [("torn", 5), ("eio", 0), ("full1", 0), ("kill", 0)])
def test_a_fault_is_at_the_call_that_was_chosen(
    tmp_path: Path, programs: Programs, machines: list[Machine], kind: str, size: int
) -> None:
    machine = Machine(tmp_path, programs, 0, Fault("sh", "write", 3, kind))
    machines.append(machine)
    script = f"for k in 1 2 3 4; do echo line-no-$k >> {machine.disk}/log || echo failed $k; done"
    done = subprocess.run(
        ["sh", "-c", script], env=machine._environment("sh"), capture_output=True, text=True, timeout=60
    )
    assert machine.state.happened
    log = (machine.disk / "log").read_text()
    if kind in ("torn", "kill"):
        assert (done.returncode, log[20:]) == (-9, "line-no-3\n"[:size])
    else:
        assert (done.stdout, log[20:]) == ("failed 3\n", "line-no-4\n")
    assert [op.code for op in parse((tmp_path / "record").read_bytes())][:3] == ["C", "W", "W"]


@pytest.mark.slow
@needs.root
@needs.own_mounts
@pytest.mark.parametrize("role", ROLES)
def test_a_fault_reaches_each_role(
    tmp_path: Path, programs: Programs, machines: list[Machine], role: str
) -> None:
    machine = Machine(tmp_path, programs, 0, Fault(role, "write", 2, "eio"))
    machines.append(machine)
    machine.break_it()
    assert machine.state.happened


def test_no_process_writes_after_the_power_cut(
    tmp_path: Path, programs: Programs, machines: list[Machine]
) -> None:
    machine = Machine(tmp_path, programs, 0, Fault("sh", "write", 2, "cut"))
    machines.append(machine)
    env = machine._environment("sh")
    script = f"echo 1 >> {machine.disk}/log; echo 2 >> {machine.disk}/log"
    assert subprocess.run(["sh", "-c", script], env=env, timeout=60).returncode == -9
    assert machine.state.cut
    for place in (machine.disk / "log", machine.notes / "ranks"):
        assert subprocess.run(["sh", "-c", f"echo 3 >> {place}"], env=env, timeout=60).returncode == -9
    assert (machine.disk / "log").read_text() == "1\n"


REQUESTS = """
import os, sys
from unidle.store.open import open_store
open_store(sys.argv[2], create=True).close()
store = open_store(sys.argv[2], create=False)
store.request("submit", b"job")
print("acknowledged", flush=True)
os._exit(0)  # the power is cut: nothing is closed
"""


@pytest.mark.parametrize("number", range(6, 14))
def test_a_request_whose_directory_sync_failed_is_refused_or_survives_a_power_cut(
    tmp_path: Path, programs: Programs, machines: list[Machine], number: int
) -> None:
    machine = Machine(tmp_path, programs, 0, Fault("writer", "sync", number, "eio"))
    machines.append(machine)
    command = [sys.executable, "-c", REQUESTS, "writer", str(machine.store)]
    done = subprocess.run(
        command, env=machine._environment("writer"), capture_output=True, text=True, timeout=60
    )
    for seed in nightly.every(10, SEEDS, first=number) if done.stdout else ():
        restore(machine, seed)
        store = open_store(str(machine.store), create=True)
        assert len(store.requests(2)) == 1, seed
        store.close()


def test_a_store_whose_making_was_cut_off_opens(
    tmp_path: Path, programs: Programs, machines: list[Machine]
) -> None:
    machine = Machine(tmp_path, programs, 0, None)
    machines.append(machine)
    cuts = 0
    for number in range(3, 9):
        machine.fault = Fault("writer", "open", number, "cut")
        script_on(machine, REQUESTS, "writer")
        cuts += machine.state.cut
        for seed in range(number, 200, 40) if machine.state.cut else ():
            restore(machine, seed)
            open_store(str(machine.store), create=True).close()
        machine.state.rearm()
        (tmp_path / "record").write_bytes(b"")
        for path in machine.disk.iterdir():
            path.unlink()
    assert cuts == 6


REFUSED = """
import os, sys
from unidle.errors import UnidleError
from unidle.store.open import open_store
store = open_store(sys.argv[2], create=False)
try:
    store.request("submit", bytes(9000))  # several pages
except UnidleError:
    print("refused", flush=True)
os._exit(0)  # killed: nothing is closed
"""
OPENED = """
import sys
from unidle.store.open import open_store
open_store(sys.argv[2], create=False, read_only=sys.argv[1] == "reader").close()
"""


def restore(machine: Machine, seed: int) -> None:
    """The disk as it may be after the power cut."""
    for path in machine.disk.iterdir():
        path.unlink()
    record = (machine.place / "record").read_bytes()
    for name, content in after_cut(parse(record), str(machine.disk), random.Random(seed)).items():
        Path(name).write_bytes(content or b"")


def script_on(machine: Machine, text: str, role: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text, role, str(machine.store)]
    return subprocess.run(command, env=machine._environment(role), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("role", ["reader", "writer"])
@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [*(("write", number, "cut-after") for number in (1, 2, 3, 4)), ("sync", 1, "eio9"), ("sync", 1, "eio"), ("sync", 2, "eio9")],
)  # fmt: skip
def test_a_commit_whose_sync_failed_tears_nothing_when_a_later_process_moves_it_into_the_store(
    tmp_path: Path, programs: Programs, machines: list[Machine], role: str, call: str, number: int, kind: str
) -> None:
    """The kernel holds the log's pages for clean that the disk does not have. The next process finds the commit in them."""
    machine = Machine(tmp_path, programs, 0, Fault("killed", "sync", 4, "eio"))
    machines.append(machine)
    assert script_on(machine, REQUESTS.replace("os._exit(0)", "store.close()"), "first").returncode == 0
    assert script_on(machine, REFUSED, "killed").stdout == "refused\n"
    machine.state.rearm()
    machine.fault = Fault(role, call, number, kind)
    script_on(machine, OPENED, role)
    assert machine.state.happened
    if not machine.state.cut:
        machine.fault = Fault("reader", "write", 2, "cut-after")
        machine.state.rearm()
        script_on(machine, OPENED, "reader")
    assert machine.state.cut
    for seed in nightly.every(10, SEEDS, first=number):
        restore(machine, seed)
        store = open_store(str(machine.store), create=False)
        assert not tools.check(store).problems, seed
        assert store.requests(3)[0].body == b"job", seed
        store.close()


@needs.root
def test_a_disk_that_lies_about_syncs_is_found(
    tmp_path: Path, programs: Programs, machines: list[Machine]
) -> None:
    """The checks find a store whose acknowledged events are lost: here no sync reaches the disk."""
    seed = next(s for s in range(100) if random.Random(s).choice((0.0, 0.5, 0.9, 1.0)) == 0.0)
    machine = Machine(tmp_path, programs, seed, Fault("up", "sync", 8, "cut"), lies=True)
    machines.append(machine)
    machine.break_it()
    assert machine.cut
    assert not machine.store.exists()
    machine.mend()
    store = open_store(str(machine.store), create=False, read_only=True)
    found = checks.lost(store, checks.view_of(store), machine.notes)
    store.close()
    assert "job job-0 was acknowledged and is not there" in found


def test_a_rank_that_runs_twice_is_found(tmp_path: Path) -> None:
    env = {"UNIDLE_JOB": "job", "UNIDLE_ATTEMPT": "1", "UNIDLE_RANK": "0", "PATH": "/usr/bin:/bin"}
    both = [subprocess.Popen(["sh", str(RANK), str(tmp_path), "0.5"], env=env) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    found = checks.doubled(tmp_path, cut=False, before=0, forbidden=set())
    assert any("two at once" in line for line in found)
    assert "('job', 1, 0) was started 2 times" in found
    again = checks.doubled(tmp_path, cut=True, before=1, forbidden={("job", 1, 0)})
    assert "('job', 1, 0) was started again after the cut" in again


@pytest.mark.slow
@needs.root
@needs.own_mounts
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_disk_faults_lose_no_acknowledged_event_and_double_no_rank(first: int, programs: Programs) -> None:
    results = list(run_seeds(range(first, first + 10), programs, workers=2))
    wrong = [result.line() + "\n" + result.output for result in results if result.faults_found]
    assert not wrong, "\n".join(wrong)
    assert sum(r.happened for r in results) >= 6, counts(results)  # call numbers depend a little on timing
