"""A file system whose journal is aborted: what nothing uses leaves the node in service, what a job uses does not."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import start, unidle
from e2e.gangs import submit, view_of, wait_for_state
from unidle.drill.disk import Disk
from unidle.engine.local.ranks import process_tree
from unidle.fleet.policies import KERNEL_LOG_VARIABLE
from unidle.probe.node_detectors import LOG
from unidle.store.open import open_store
from waiting import wait_until

pytestmark = [needs.root, needs.kernel_log, pytest.mark.slow]  # the aborts are in the log of the kernel
Up = Callable[..., subprocess.Popen[bytes]]
GUARD = {
    "preflight": "off", "drain": "1s", "drain_hard": "1s", "probation": "2s", "probation_every": "1s",
    "probation_work": "none",
}  # fmt: skip
PROVE = {"tries": 9, "pause": "1s"}  # a check that a busy machine leaves undecided is made again


@pytest.fixture(autouse=True)
def log_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNEL_LOG_VARIABLE)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", tmp_path / "disk.img", 64 << 20, journaled=True)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Starts `unidle up`; in the end all of it is killed, with ranks and checks. What it prints is in ``said_by``."""
    name, token = "UNIDLE_FAILED_DISK", secrets.token_hex(8)
    processes: list[subprocess.Popen[bytes]] = []

    def started(store: Path, fleet: Path) -> subprocess.Popen[bytes]:
        words = ("up", "--store", store, "--fleet", fleet, "--progress", "off")
        with said_by(tmp_path).open("ab") as errors:
            processes.append(start(*words, env={**os.environ, name: token}, stderr=errors))
        return processes[-1]

    def ended() -> bool:
        left = process_tree.with_environment(f"{name}={token}")
        process_tree.send(left, signal.SIGKILL)
        return not left

    yield started
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
    wait_until(ended, 60, "all processes to end")
    for process in processes:
        process.wait()


def said_by(place: Path) -> Path:
    return place / "up.err"


def fleet_file(place: Path, **guard: Any) -> Path:
    file = place / "fleet.json"
    nodes = [{"id": "n1", "devices": {"count": 1, "kind": "cpu"}}]
    file.write_text(json.dumps({"nodes": nodes, "guard": {**GUARD, **guard}}))
    return file


def journal_of(disk: Disk) -> str:
    return Path(disk.device).name


def aborted(disk: Disk, after: int) -> tuple[bool, int]:
    """Whether a line of the kernel's log after this number says that the journal of this disk was aborted; the last number.

    The kernel drops its oldest lines, so that they cannot be counted.
    """
    fd, found = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), False
    last = after
    try:
        while True:
            try:
                record = os.read(fd, 8192).decode(errors="replace")
            except BrokenPipeError:
                continue
            last = max(last, int(record.split(",", 2)[1]))
            is_new = int(record.split(",", 2)[1]) > after
            found |= is_new and "Aborting journal" in record and f"{journal_of(disk)}-" in record
    except BlockingIOError:
        return found, last
    finally:
        os.close(fd)


def abort(disk: Disk) -> None:
    """The file system fails, as after an I/O error of its device."""
    _, last = aborted(disk, 0)
    disk.cut()
    wait_until(lambda: aborted(disk, last)[0], 60, "the kernel to report it")


def kernel_check(*words: object) -> dict[str, Any]:
    done = unidle("check", "--json", "--only", "kernel_log", "--timeout", 60, *words)
    [found] = json.loads(done.stdout)["checks"]
    assert done.returncode == (0 if found["ok"] else 1), done.stderr
    return dict(found)


def wait_for_watch(store: Path) -> None:
    """Until the kernel's log is followed: a new store begins with lines that are written after that."""
    wait_until(
        lambda: (seen := view_of(store).watching.get("n1", {}).get(LOG)) and not seen.why_not,
        what="the log to be followed",
    )


def node(store: Path) -> tuple[str, str]:
    """State and reason of the node; "healthy" while it is in use."""
    here = view_of(store).care.targets.get("n1")
    return ("healthy", "") if here is None else (here.state, here.because.text)


def wait_until_out(store: Path, disk: Disk) -> None:
    """Until the node is taken out, by unidle's own check of a minute; a failure shows what happened instead."""
    try:
        wait_until(lambda: node(store)[0] == "out", 300, "the node to be out")
    except AssertionError as error:
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "loop" in line]
        error.add_note(f"disk {disk.device}, said by `unidle up`: {said_by(disk.place.parent).read_text()}")
        error.add_note("\n".join([*mounts, *last_events(store)]))
        raise


def last_events(store: Path) -> list[str]:
    opened = open_store(str(store), create=False, read_only=True)
    try:
        events = list(opened.read())
        return [f"{each.time_ns} {each.kind} {bytes(each.body)[:300]!r}" for each in events[-40:]]
    finally:
        opened.close()


def faults(store: Path, device: str) -> list[tuple[str, str]]:
    return [(f.action, f.because.text) for f in view_of(store).faults if device in f.because.text]


def test_a_file_system_that_nothing_uses_fails_and_the_node_stays_in_service(
    disk: Disk, tmp_path: Path, up: Up
) -> None:
    store = tmp_path / "s.db"
    submit(store, tmp_path / "job.json", "echo step 1; sleep 1000", workdir=str(tmp_path))
    up(store, fleet_file(tmp_path))
    wait_for_watch(store)
    wait_for_state(store, "job", "running")
    abort(disk)
    [(action, because)] = wait_until(lambda: faults(store, journal_of(disk)), 60, "the fault to be seen")
    assert action == "watch" and "nothing of the system, the store or a job is on it" in because
    assert node(store)[0] == "healthy"
    found = kernel_check()
    assert found["ok"] is True or journal_of(disk) not in found["because"], found
    found = kernel_check("--used", disk.place / "saves")
    assert found["ok"] is False and journal_of(disk) in found["because"], found
    disk.mount_again()
    found = kernel_check("--used", disk.place / "saves")  # the line is still in the log
    assert found["ok"] is False, found
    wait_for_state(store, "job", "running")


@pytest.mark.timeout(900)
def test_the_file_system_of_a_job_fails_and_the_remedy_that_is_printed_works(
    disk: Disk, tmp_path: Path, up: Up
) -> None:
    store, saves = tmp_path / "s.db", disk.place / "saves"
    saves.mkdir()
    disk.sync()
    submit(
        store, tmp_path / "job.json", "echo step 1; sleep 1000", workdir=str(tmp_path), grace_s=0.5,
        checkpoint={"path": str(saves)},
    )  # fmt: skip
    file = fleet_file(tmp_path, prove=PROVE)
    up(store, file)
    wait_for_watch(store)
    wait_for_state(store, "job", "running")
    abort(disk)
    wait_until_out(store, disk)
    seen = unidle("guard", "nodes", "--store", store).stdout
    assert "unidle guard return" in seen and journal_of(disk) in " ".join(seen.split()), seen
    assert wait_for_state(store, "job", "queued").terminal is False
    disk.mount_again()
    done = unidle("guard", "return", "n1", "--store", store)
    assert done.returncode == 0, done.stderr
    wait_for_state(store, "job", "running", timeout_s=180)
    assert node(store)[0] == "healthy"
    used = ("--used", saves)
    returned = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert kernel_check(*used, "--log-since", returned)["ok"] is True and kernel_check(*used)["ok"] is False
    abort(disk)  # a later line counts, though it is like the first one
    assert kernel_check(*used, "--log-since", returned)["ok"] is False
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert kernel_check(*used, "--log-since", after)["ok"] is True
    wait_until_out(store, disk)


@pytest.mark.timeout(900)
def test_the_file_system_of_the_store_fails_and_the_node_comes_back_after_its_return(
    disk: Disk, tmp_path: Path, up: Up
) -> None:
    store, file = disk.place / "s.db", fleet_file(tmp_path, prove=PROVE)
    open_store(str(store), create=True).close()
    first = up(store, file)
    wait_for_watch(store)
    disk.sync()
    abort(disk)
    assert first.wait(60) == 4, said_by(tmp_path).read_text()  # it cannot write what it decided
    disk.mount_again()
    _, before = aborted(disk, 0)
    up(store, file)
    wait_until_out(store, disk)
    seen = unidle("guard", "nodes", "--store", store).stdout
    assert "unidle guard return" in seen and journal_of(disk) in " ".join(seen.split()), seen
    done = unidle("guard", "return", "n1", "--store", store)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: node(store)[0] == "healthy", 180, "the node to come back")
    assert not aborted(disk, before)[0]
    submit(store, tmp_path / "next.json", "echo step 1; sleep 1000", workdir=str(tmp_path), grace_s=0.5)
    wait_for_state(store, "next", "running")
