"""Jobs from Python, with real processes."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest

import unidle
from api.functions import environment, fail_in_rank_1, run_script, train
from unidle.api import controller_process
from unidle.api.results import LedgerRows
from unidle.api.serve import ServeOrder
from unidle.ledger.columns import empty
from unidle.ledger.query import summary
from unidle.ledger.sources import LiveRows
from waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.mark.parametrize("mode", ["0660", 0o660])
def test_mode_is_that_of_a_store_that_is_made(store: Path, mode: str | int) -> None:
    unidle.submit(["true"], store=store, mode=mode, hold=True)
    assert stat.S_IMODE(store.stat().st_mode) == 0o660
    unidle.submit(["true"], store=store, mode="0600", hold=True)
    assert stat.S_IMODE(store.stat().st_mode) == 0o660  # it exists, and keeps its own
    other = store.with_name("other.db")
    unidle.run(["true"], store=other, mode=mode, cpu_devices=1, logs="none")
    assert stat.S_IMODE(other.stat().st_mode) == 0o660


@pytest.mark.parametrize("mode", ["0777", 0o777, 660, "rw", True, None, 0o660 * 1.0])
def test_a_wrong_mode_is_refused_before_there_is_a_store(store: Path, mode: object) -> None:
    for begin in (unidle.run, unidle.submit):
        with pytest.raises(unidle.BadInput, match=r"mode: .*is not the mode of a file.*0600 to 0666"):
            begin(["true"], store=store, mode=mode)  # type: ignore[operator]
    assert not store.exists()


def test_frames_need_polars_and_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    rows = LedgerRows(("leaf",), summary(LiveRows(empty())))
    assert rows.rows("dict") == []
    with pytest.raises(
        unidle.errors.BadInput, match=r"rows: .* pip install 'unidle\[polars\]', or rows=\"dict\""
    ):
        rows.rows("polars")


def test_a_function_runs_in_every_rank_and_can_be_asked_about(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = unidle.run(train, args=[0.5], ranks=2, store=store)
    assert capsys.readouterr().out.splitlines() == [f"step {k} loss {0.5 / k:.2f} rank 0" for k in (1, 2, 3)]
    assert job.result() == {"rank": "0", "lr": 0.5}
    assert list(job.logs(rank=1))[-1] == "step 3 loss 0.17 rank 1"
    assert sorted(line[:3] for line in job.logs(rank=None)) == ["[0]"] * 3 + ["[1]"] * 3
    assert str(job.explain()).startswith(f"{job.id}  succeeded")
    assert job.explain().data["decisions"][0]["what"] == "submitted"
    frame = job.ledger("leaf")
    assert isinstance(frame, pl.DataFrame)
    assert frame["percent"].sum() == pytest.approx(100)
    assert job.ledger(["attempt", "leaf"], rows="dict")[0].keys() >= {
        "attempt",
        "leaf",
        "ns",
        "seconds",
        "cost",
    }
    assert [rank["code"] for rank in job.details()["runs"][0]["ranks"]] == [0, 0]
    assert unidle.job("train", store=store) == job
    assert unidle.list_jobs(store=store, state="failed") == []
    page = job.report(store.parent / "pages" / "train.html")
    assert page == store.parent / "pages" / "train.html"
    assert job.id in page.read_text()
    assert job.report().name == f"{job.id}.html"
    (store.parent / "file").touch()
    with pytest.raises(unidle.errors.BadInput, match="cannot be written"):
        job.report(store.parent / "file" / "train.html")
    with pytest.raises(unidle.errors.BadInput, match="not a number of seconds"):
        job.wait(timeout="1s")  # type: ignore[arg-type]
    with pytest.raises(unidle.errors.CannotRun, match="does not run"):
        job.profile(0.1)


def test_a_failure_raises_the_words_of_the_rank_that_failed_first(store: Path) -> None:
    with pytest.raises(unidle.errors.JobFailed, match="rank 1") as failed:
        unidle.run(fail_in_rank_1, ranks=2, store=store, logs="none")
    assert failed.value.state == "failed"
    assert "ValueError: not aligned" in failed.value.__notes__[0]
    assert "rank/call.py" not in failed.value.__notes__[0]
    (job,) = unidle.list_jobs(store=store)
    with pytest.raises(unidle.errors.JobFailed):
        job.result()
    explained = subprocess.run(
        [sys.executable, "-m", "unidle", "explain", job.id, "--store", store], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    # the command folds long lines, such as one of a disk of this machine that has failed
    assert explained.stdout.split() == str(job.explain()).split()
    assert "  | ValueError: not aligned\n" in explained.stdout


def test_lines_of_all_ranks_are_in_order_of_time(store: Path, tmp_path: Path) -> None:
    turns = (
        'after() { while [ ! -e "$1" ]; do sleep 0.05; done; sleep 0.6; }; '
        "if [ $UNIDLE_RANK = 0 ]; then echo a; touch a; after b; echo c; else after a; echo b; touch b; fi"
    )
    job = unidle.run(["sh", "-c", turns], ranks=2, workdir=tmp_path, store=store, logs="none")
    assert list(job.logs(rank=None)) == ["[0] a", "[1] b", "[0] c"]


def test_a_script_needs_no_main_guard_and_gets_objects_of_its_own_classes(tmp_path: Path) -> None:
    done = run_script(
        """
import asyncio, dataclasses, unidle

@dataclasses.dataclass
class Point:
    x: int

scale = 3

async def work(x):
    await asyncio.sleep(0)
    return Point(scale * x)

async def main():
    job = unidle.run(work, args=[2], wait=False)
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)
    other = asyncio.create_task(tick())
    await job
    other.cancel()
    assert isinstance(job.result(), Point), type(job.result())
    print(job.state, job.result(), ticks > 10)

asyncio.run(main())
""",
        tmp_path,
    )
    assert (done.stdout, done.stderr) == ("succeeded Point(x=6) True\n", "")


def test_threads_share_one_store_and_its_controller(store: Path) -> None:
    found: dict[float, object] = {}

    def one(lr: float) -> None:
        found[lr] = unidle.run(train, args=[lr], store=store, logs="none").result()

    threads = [threading.Thread(target=one, args=[lr]) for lr in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {lr: {"rank": "0", "lr": lr} for lr in (1.0, 2.0, 3.0)}
    free = unidle.run(["true"], store=store, cpu_devices=3, logs="none")  # nobody holds the store now
    assert free.state == "succeeded"


def test_the_end_of_a_job_is_not_that_of_the_one_before(store: Path, tmp_path: Path) -> None:
    """The controller stays for the job of another process, and nobody has read its answer about the first job."""

    def until(name: str) -> list[str]:
        return ["sh", "-c", f"while [ ! -e {tmp_path}/{name} ]; do sleep 0.05; done"]

    other, first, second = (
        unidle.submit(words, store=store, hold=True) for words in (until("other"), ["true"], until("second"))
    )
    server = controller_process.Server(ServeOrder(str(store), cpu_devices=3), first.id)
    stdout = server._process.stdout
    assert stdout is not None
    assert select.select([stdout], [], [], 60)[0], "the answer that it stays"
    server.add(second.id)
    server._jobs.discard(first.id)
    for name, job in (("other", other), ("second", second)):
        (tmp_path / name).touch()
        wait_until(lambda job=job: job.ended, 60, f"the end of {name}")  # type: ignore[misc]
    server.over(second.id)
    assert not server.alive


SLEEPER = """
import signal, sys, time, unidle
def sleeper(stubborn):
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up")
    time.sleep(1000)
unidle.run(sleeper, args=[len(sys.argv) > 1], ranks=2, grace_s=600)
"""


def _sleeping(place: Path, *words: str) -> subprocess.Popen[str]:
    script = place / "sleeper.py"
    script.write_text(SLEEPER)
    caller = subprocess.Popen(
        [sys.executable, script, *words], cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(place),
    )  # fmt: skip
    assert caller.stdout is not None
    assert caller.stdout.readline() == "up\n"
    return caller


def test_ctrl_c_leaves_nothing_running_and_a_second_one_ends_the_grace(tmp_path: Path, store: Path) -> None:
    caller = _sleeping(tmp_path, "stubborn")
    caller.send_signal(signal.SIGINT)
    assert caller.stderr is not None
    assert "interrupt again" in caller.stderr.readline()
    caller.send_signal(signal.SIGINT)
    _, errors = caller.communicate(timeout=60)
    assert errors.endswith("KeyboardInterrupt\n")
    (job,) = unidle.list_jobs(store=store)
    assert job.state == "cancelled"
    assert all(rank["code"] == -signal.SIGKILL for rank in job.details()["runs"][0]["ranks"])


def test_the_end_of_the_caller_is_the_end_of_its_job(tmp_path: Path, store: Path) -> None:
    caller = _sleeping(tmp_path)
    caller.kill()
    caller.communicate()
    (job,) = unidle.list_jobs(store=store)
    wait_until(lambda: job.state == "cancelled", 60, "the end of the job")
    assert "the process that ran it" in str(job.explain())


def test_a_controller_that_is_killed_is_replaced(tmp_path: Path, store: Path) -> None:
    job = unidle.run(
        ["sh", "-c", "until [ -e go ]; do sleep 0.05; done"], workdir=tmp_path, store=store, wait=False
    )
    wait_until(lambda: job.state == "running", 60, "its start")
    os.kill(_controller(store), signal.SIGKILL)
    done = unidle.run(["touch", "go"], workdir=tmp_path, store=store, logs="none")
    assert done.state == "succeeded"
    assert job.wait(60).state == "succeeded"
    assert len(job.details()["runs"]) == 1


def _controller(store: Path) -> int:
    """The process that holds the store."""
    from unidle.store.open import open_store

    opened = open_store(str(store), create=False, read_only=True)
    holder = opened.holder()
    opened.close()
    assert holder is not None
    return int(holder.split("pid ")[1].split()[0].rstrip(",;)"))


def test_a_submitted_job_waits_for_a_controller(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = unidle.submit(["true"], store=store)
    assert job.state == "queued"
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.1 s"):
        job.wait(0.1)
    monkeypatch.setattr("unidle.api.job_watch._UNSERVED_S", 0.0)
    with pytest.raises(unidle.errors.CannotRun, match="unidle up --store"):
        job.wait()
    assert job.cancel().state == "cancelled"
    with pytest.raises(unidle.errors.JobFailed) as ended:
        unidle.submit(train, args=[1.0], store=store).cancel().result()
    assert ended.value.state == "cancelled"


def test_a_job_runs_where_another_process_serves_its_store(store: Path) -> None:
    first = unidle.submit(["sleep", "1000"], store=store)
    up = subprocess.Popen(
        [sys.executable, "-m", "unidle", "up", "--store", store, "--cpu-devices", "2", "--progress", "off"]
    )
    wait_until(lambda: first.state == "running", 60, "the start of the first job")
    try:
        assert unidle.run(train, args=[2.0], store=store, logs="none").result()["lr"] == 2.0
        with pytest.raises(unidle.errors.StoreHeld, match="leave them out"):
            unidle.run(["true"], store=store, cpu_devices=4)
        with pytest.raises(unidle.errors.CannotRun, match="the fleet has 2"):
            unidle.run(["true"], ranks=3, store=store)
        assert len(unidle.list_jobs(store=store)) == 2
    finally:
        first.cancel()
        up.terminate()
        up.wait(60)


def test_a_running_job_is_profiled_from_python(store: Path, tmp_path: Path) -> None:
    job = unidle.run(
        [sys.executable, "-c", "print('up', flush=True)\nwhile True: pass"], store=store, wait=False
    )
    try:
        assert next(job.logs(follow=True)) == "up"
        seen = job.profile(0.5)
        assert seen.data["tier"] in seen.text
        saved = seen.save(tmp_path / "seen.json")
    finally:
        job.cancel()
    assert job.state == "cancelled"
    done = subprocess.run(
        [sys.executable, "-m", "unidle", "profile", "--from", saved], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_examples_of_the_page_run_as_they_stand(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "python.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    done = run_script("\n".join(blocks), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert page.split("```text\n")[1].split("```")[0] in done.stdout
    for block in blocks:  # a comment that is what is printed
        for line in block.splitlines():
            printed = line.partition("  # ")[2] if line.strip().startswith("print(") else ""
            if printed in ("queued", "cancelled") or printed.startswith(("succeeded [", "unidle.run:")):
                assert printed.removesuffix(" ...") in done.stdout
