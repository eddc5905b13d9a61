"""Real training processes that lose ranks, nodes, holders and files; what goes on ends like what was undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import needs
from waiting import wait_until

torch = pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")

from checkpoint.jobs import Job, equal, started_after, steps_of, wait_for_step  # noqa: E402
from unidle.checkpoint.find import find_newest_good  # noqa: E402
from unidle.checkpoint.verify import verify  # noqa: E402

pytestmark = pytest.mark.slow
READ = ("--restore-test", "read", "--batch", "8", "--width", "16", "--steps", "60")
Make = Callable[..., Job]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    jobs: list[Job] = []

    def one(*arguments: str, **layout: int) -> Job:
        jobs.append(Job(tmp_path / f"job{len(jobs)}", *READ, *arguments, **layout))
        return jobs[-1]

    yield one
    for job in jobs:
        job.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The result of a run to the end, by kind (``ddp``, ``fsdp``)."""
    jobs: dict[str, Job] = {}

    def result(kind: str) -> Path:
        if kind not in jobs:
            more = ("--fsdp",) if kind == "fsdp" else ()
            jobs[kind] = job = Job(tmp_path_factory.mktemp(kind), *READ, *more, "--memory-every", "0")
            with job.run("--result", str(job.place / "result")) as gang:
                assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
        return jobs[kind].place / "result"

    yield result
    for job in jobs.values():
        job.end()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_lost_node_costs_at_most_one_step_and_changes_nothing(
    make: Make, undisturbed: Callable[[str], Path], kind: str
) -> None:
    job = make(*(("--fsdp",) if kind == "fsdp" else ()), "--step-s", "0.1", "--checkpoint-every", "1000")
    with job.run() as gang:
        wait_for_step(gang, 12)
        gang.kill(1)
        done = max(steps_of(gang.printed(0)))
        job.lose_node("n1")
        gang.codes()
        done = max(done, max(steps_of(gang.printed(0))))
    with job.run("--step-s", "0", "--result", str(job.place / "result")) as gang:
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
        assert done - 1 <= started_after(gang) <= done
        assert "in memory" in gang.printed(0)
    assert equal(undisturbed(kind), job.place / "result", 1e-12)


def test_ranks_killed_at_any_point_of_a_save_leave_a_whole_state(
    make: Make, undisturbed: Callable[[str], Path]
) -> None:
    job = make(
        "--checkpoint-every", "2", "--step-s", "0.1"
    )  # on a busy machine copies of quicker steps are left out
    reached = 0
    for attempt in range(4):
        with job.run() as gang:
            wait_for_step(gang, reached + 5 + attempt)
            gang.kill(attempt % 2)
            gang.codes()
            assert started_after(gang) >= reached - 1
            reached = max(steps_of(gang.printed(0)))
        newest, bad = find_newest_good(str(job.storage))
        assert newest is not None
        assert all(verdict.format == "partial" for verdict in bad)
    with job.run("--step-s", "0", "--result", str(job.place / "result")) as gang:
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
        assert started_after(gang) >= reached - 1
    assert equal(undisturbed("ddp"), job.place / "result", 1e-12)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def tear(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-4096:] = bytes(min(4096, len(data)))
    file.write_bytes(data)


@pytest.mark.parametrize("harm", [flip, tear])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_is_used(
    make: Make, undisturbed: Callable[[str], Path], harm: Callable[[Path], None]
) -> None:
    job = make("--checkpoint-every", "10", "--memory-every", "0")
    with job.run("--steps", "35", "--step-s", "0.1") as gang:
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
    good, newest = sorted(job.storage.glob("step_*"))[-2:]
    harm(newest / "shard-00001-of-00002.safetensors")
    with job.run("--result", str(job.place / "result")) as gang:
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
        assert f"{newest} is bad and is skipped" in gang.printed(0)
        assert started_after(gang) == int(good.name.removeprefix("step_"))
    assert verify(str(newest)).state == "bad" or newest.name == "step_0000000030"


def test_the_last_state_is_stored_though_the_save_before_it_took_until_the_end(make: Make) -> None:
    job = make("--checkpoint-every", "10", "--memory-every", "0", "--steps", "20", "--step-s", "0.1")
    with job.run() as gang:
        wait_for_step(gang, 8)
        for node in ("n0", "n1"):
            job.signal_holder(node, signal.SIGSTOP)
        wait_for_step(gang, 20)
        for node in ("n0", "n1"):
            job.signal_holder(node, signal.SIGCONT)
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
    assert [verify(str(path)).state for path in sorted(job.storage.glob("step_*"))] == ["good", "good"]
    newest, _ = find_newest_good(str(job.storage))
    assert newest is not None and newest.path.endswith("20"), newest


def test_fsdp_goes_on_with_more_ranks_and_with_fewer(make: Make, undisturbed: Callable[[str], Path]) -> None:
    job = make("--fsdp", "--checkpoint-every", "10", "--memory-every", "0", nodes=3)
    with job.run("--steps", "20", ranks=2) as gang:
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
    with job.run("--steps", "40", ranks=3) as gang:
        assert gang.codes() == [0, 0, 0], gang.printed(0)
        assert started_after(gang) == 20
    with job.run("--result", str(job.place / "result"), ranks=2) as gang:
        assert gang.codes() == [0, 0], gang.printed(0)
        assert started_after(gang) == 40
    # eight samples on three ranks are not the same mean of means, so the state is near, not equal
    assert torch.load(job.place / "result")["position"] == torch.load(undisturbed("fsdp"))["position"]


@needs.root
def test_a_full_disk_costs_no_good_checkpoint_and_stops_no_training(
    make: Make, wait_until: Callable[..., object]
) -> None:
    job = make("--checkpoint-every", "5", "--memory-every", "0", "--width", "128")
    job.storage.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(job.storage)], check=True)
    try:
        with job.run("--step-s", "0.1", "--steps", "50") as gang:
            wait_until(lambda: any(job.storage.glob("step_*/good.json")), 120, "a good checkpoint")
            fill(job.storage / "filler")
            codes = gang.codes()
            text = gang.printed(0)
        assert codes == [0, 0], text
        assert "No space left on device" in text
        assert "training continues" in text
        wait_until(lambda: not list(job.storage.glob(".step_*")), 60, "the end of what was half written")
        assert find_newest_good(str(job.storage))[0] is not None
    finally:
        job.end()
        subprocess.run(["umount", "--lazy", str(job.storage)], check=True)


def fill(path: Path) -> None:
    with path.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass


def test_a_directory_deleted_under_the_job_is_made_again(make: Make) -> None:
    job = make("--checkpoint-every", "5", "--memory-every", "0", "--step-s", "0.05")
    with job.run() as gang:
        wait_until(lambda: any(job.storage.glob("step_*")), 120, "a checkpoint")
        subprocess.run(["rm", "-rf", str(job.storage)], check=True)
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
    assert find_newest_good(str(job.storage))[0] is not None


def test_a_second_job_in_the_same_directory_is_refused_in_one_line(make: Make) -> None:
    job = make("--checkpoint-every", "10", "--step-s", "0.2", "--steps", "100000")
    with job.run() as first:
        wait_for_step(first, 3)
        with job.run() as second:
            assert all(second.codes())
            assert "writes to this directory" in second.printed(0)
            assert "give each job its own directory" in second.printed(0)
        assert first.processes[0].poll() is None


def test_a_directory_that_cannot_be_written_is_refused_in_one_line(make: Make) -> None:
    job = make()
    job.storage.parent.mkdir(parents=True, exist_ok=True)
    job.storage.write_text("a file is in the way")
    with job.run() as gang:
        assert all(gang.codes())
        assert "give each job its own directory, with write permission" in gang.printed(0)


def test_a_holder_killed_under_the_job_is_started_again(
    make: Make, undisturbed: Callable[[str], Path]
) -> None:
    job = make("--checkpoint-every", "10", "--step-s", "0.1")
    with job.run("--result", str(job.place / "result")) as gang:
        wait_for_step(gang, 8)
        job.kill_holder("n0")
        job.kill_holder("n1")
        assert gang.codes() == [0, 0], gang.printed(0) + gang.printed(1)
        assert "was restarted" in gang.printed(0)
    newest, _ = find_newest_good(str(job.storage))
    assert newest is not None
    assert newest.step is not None
    assert newest.step >= 30
    assert equal(undisturbed("ddp"), job.place / "result", 1e-12)


def test_a_stopped_rank_is_no_reason_to_lose_what_the_peer_holds(make: Make) -> None:
    job = make("--checkpoint-every", "1000", "--step-s", "0.05")
    with job.run() as gang:
        wait_for_step(gang, 10)
        os.kill(gang.processes[1].pid, signal.SIGSTOP)
        at = max(steps_of(gang.printed(0)))
        for rank in (0, 1):
            gang.kill(rank)
        gang.codes()
        at = max(at, max(steps_of(gang.printed(0))))
    with job.run("--steps", str(at + 5)) as gang:
        assert gang.codes() == [0, 0], gang.printed(0)
        assert started_after(gang) >= at - 1
