"""The first screen: each planted cause is named first, with its line, and with what helps."""

from __future__ import annotations

import json
import re

import pytest

from scope.worlds import STD, TORCH, World, at
from unidle.scope.bottlenecks import Machine
from unidle.scope.model import Frame, Profile
from unidle.scope.profile_json import answer
from unidle.scope.rules import CATEGORIES, RuleSet
from unidle.scope.rules_file import shipped
from unidle.scope.screen import screen
from unidle.scope.summary import report_of

RULES = RuleSet(shipped())
START = "_start [python3.11]"
MAIN = at("<module>", 50)
BACKWARD = (START, MAIN, at("train", 6), "THPEngine_run_backward [libtorch_python.so]", "torch::autograd::Engine::execute [libtorch_cpu.so]", "sgemm_kernel [libtorch_cpu.so]")  # fmt: skip
NEXT = f"_MultiProcessingDataLoaderIter._next_data {TORCH}/utils/data/dataloader.py"
LOCK = "lock_PyThread_acquire_lock [libpython3.11.so.1.0]"


def told(w: World, machine: Machine | None = None) -> str:
    lines = screen(report_of(w.profile(), RULES, machine))
    assert max(map(len, lines)) <= 80
    return "\n".join(lines)


def causes_in(said: str) -> list[str]:
    """What each finding says first, in order."""
    return re.findall(r"^\d+ % of the time it (.*)$", said, re.MULTILINE)


def first(w: World, machine: Machine | None = None) -> str:
    """What is said of the biggest cause, on one line."""
    return re.sub(r"\s+", " ", told(w, machine).split("\n\n")[1])


def trainer(share_ms: int = 2000) -> World:
    return World().process(1).sees(1, "on", share_ms, *BACKWARD)


def test_slow_workers_are_named_with_their_line_and_how_busy_they_are() -> None:
    w = trainer(3000).sees(
        1, "off", 7000, START, MAIN, at("train", 4), NEXT, f"select {STD}/selectors.py", "wait poll"
    )
    for pid in (8, 9):
        w.process(pid, parent=1)
        w.sees(pid, "on", 9800, f"_worker_loop {TORCH}/utils/data/_utils/worker.py", at("Images.__getitem__", 41, "/home/me/data.py"), "inflate [libz.so]")  # fmt: skip
        w.sees(
            pid,
            "off",
            200,
            f"_worker_loop {TORCH}/utils/data/_utils/worker.py",
            f"get {STD}/multiprocessing/queues.py",
            "wait poll",
        )
    said = first(w)
    assert said.startswith(
        "70 % of the time it waits for the DataLoader's workers 2 workers, busy 98 % of the time"
    )
    assert "Images.__getitem__ (data.py:41)" in said
    assert "num_workers is 2" in said


def test_workers_that_rest_are_not_blamed() -> None:
    w = (
        trainer(3000)
        .sees(1, "off", 7000, MAIN, NEXT, f"select {STD}/selectors.py", "wait poll")
        .process(8, parent=1)
    )
    w.sees(8, "on", 1000, f"_worker_loop {TORCH}/utils/data/_utils/worker.py", at("__getitem__", 1))
    w.sees(
        8,
        "off",
        9000,
        f"_worker_loop {TORCH}/utils/data/_utils/worker.py",
        f"get {STD}/multiprocessing/queues.py",
        "wait poll",
    )
    assert "the transfer of batches takes the time" in first(w)


SINGLE = f"_SingleProcessDataLoaderIter._next_data {TORCH}/utils/data/dataloader.py"
CASES = {
    "loading in the main thread": ("on", (SINGLE, at("Files.__getitem__", 7), "_io_FileIO_readinto [libpython3.11.so.1.0]"), "has no workers", "Files.__getitem__ (train.py:7)", "data"),
    "a slow collate function": ("on", (SINGLE, at("pad_collate", 17)), "joins samples to batches", "pad_collate (train.py:17)", "data"),
    "tokenising": ("on", (at("Words.tokenize", 12), "sre_search [libpython3.11.so.1.0]"), "turns text into tokens", "Words.tokenize (train.py:12)", "data"),
    "a checkpoint each step": ("on", (at("keep", 31), f"save {TORCH}/serialization.py", "mz_crc32 [libtorch_cpu.so]"), "saves a checkpoint", "keep (train.py:31)", "checkpoint_io"),
    "a flush to disk": ("off", (at("keep", 32), "os_fsync [libpython3.11.so.1.0]", "wait fsync"), "on the disk", "keep (train.py:32)", "checkpoint_io"),
    "printing into a slow pipe": ("off", (at("train", 33), "builtin_print [libpython3.11.so.1.0]", "wait write pipe"), "prints or logs", "train (train.py:33)", "other"),
    "asking for values": ("on", (at("train", 34), "torch::autograd::THPVariable_item [libtorch_python.so]", "cudaStreamSynchronize [libcudart.so.12]"), "asks for a tensor's value", "train (train.py:34)", "device_sync"),
    "collecting garbage": ("on", (at("train", 35), "gc_collect_main [libpython3.11.so.1.0]"), "collects garbage", "train (train.py:35)", "python"),
    "sleeping": ("off", (at("poll", 36), "time_sleep [libpython3.11.so.1.0]", "wait sleep"), "sleeps", "poll (train.py:36)", "idle"),
    "a slow file": ("off", (at("more", 37), "_io_FileIO_readinto [libpython3.11.so.1.0]", "nfs_file_read [kernel]", "wait read file"), "reads a file", "more (train.py:37)", "data"),
    "another program": ("off", (at("probe", 38), f"run {STD}/subprocess.py", "wait wait child"), "waits for another program", "probe (train.py:38)", "other"),
    "a loop in Python": ("on", (at("score", 39),), "runs Python code", "score (train.py:39)", "python"),
    "copies": ("on", (at("train", 40), "torch::autograd::THPVariable_to [libtorch_python.so]", "cudaMemcpyAsync [libcudart.so.12]"), "copies between host and device", "train (train.py:40)", "copy"),
    "a stranger's collective": ("off", (at("train", 41), "c10d::Work::wait [libtorch_cpu.so]", "wait futex"), "waits for its peers", "the other ranks were not profiled", "collective"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_planted_cause_is_the_first_thing_said(case: str) -> None:
    state, stack, words, where, category = CASES[case]
    w = trainer(2000).sees(1, state, 8000, START, MAIN, *stack)
    said = first(w)
    assert said.startswith("80 % of the time it "), said
    assert words in said
    assert where in said
    assert answer(report_of(w.profile(), RULES))["budget"][category] == 80.0


def test_threads_that_hold_the_interpreter_are_shown_with_their_lines() -> None:
    w = trainer(2000).sees(
        1, "off", 8000, START, MAIN, at("train", 9), "take_gil [libpython3.11.so.1.0]", "wait futex"
    )
    w.sees(1, "on", 9000, START, at("Plot.draw", 77, "/home/me/plot.py"), tid=2, name="drawer")
    said = first(w)
    assert "global lock (GIL)" in said
    assert "1 other thread of the process runs Python for 90 % of the time" in said
    assert "Plot.draw (plot.py:77)" in said


def test_a_lock_says_what_the_other_thread_does_with_it() -> None:
    w = trainer(2000).sees(1, "off", 8000, START, MAIN, at("Visits.batch", 9), LOCK, "wait futex")
    w.sees(
        1, "off", 9000, START, at("Visits.note", 21), "time_sleep [libpython3.11.so.1.0]", "wait sleep", tid=2
    )
    said = first(w)
    assert "waits for a lock" in said
    assert "Visits.note (train.py:21)" in said


def test_too_many_threads_are_counted_against_the_cpus() -> None:
    w = trainer(2000).exactly(1, 2000, 0, 8000)
    for tid in range(2, 9):
        w.sees(1, "on", 2000, "gomp_thread_start [libgomp.so.1]", "sgemm_kernel [libtorch_cpu.so]", tid=tid)
        w.exactly(1, 2000, 0, 8000, tid=tid)
    said = first(w, Machine(cpus=2))
    assert "gets no CPU" in said
    assert "8 threads of this job want a CPU; together they get 1.6 of 2 CPUs" in said
    assert "OMP_NUM_THREADS" in said


def test_another_program_that_has_the_cpus_is_named_after_the_jobs_own_cause() -> None:
    w = trainer(1000).sees(1, "on", 2000, START, MAIN, at("score", 39)).exactly(1, 3000, 0, 7000)
    said = told(w, Machine(2, ((77, "/usr/bin/ffmpeg -i x", 1.9),)))
    causes = causes_in(said)
    assert causes[0].startswith("runs Python code")
    assert causes[1].startswith("is ready to run and gets no CPU")
    assert "ffmpeg" in said
    assert "pid 77" in said


def test_another_program_that_leaves_a_job_almost_no_time_is_named_first() -> None:
    w = trainer(500).sees(1, "on", 500, START, MAIN, at("score", 39)).exactly(1, 1000, 0, 9000)
    said = told(w, Machine(2, ((77, "/usr/bin/ffmpeg -i x", 1.9),)))
    causes = causes_in(said)
    assert causes[0].startswith("is ready to run and gets no CPU")
    assert causes[1].startswith("runs Python code")


def test_a_job_of_more_threads_than_cpus_that_would_have_enough_of_them_alone_is_not_blamed() -> None:
    w = trainer(1000).sees(1, "on", 1000, START, MAIN, at("score", 39)).exactly(1, 2000, 0, 7000)
    for tid in (2, 3):
        w.sees(1, "on", 500, "sgemm_kernel [libtorch_cpu.so]", tid=tid).exactly(1, 500, 8500, 1000, tid=tid)
    said = told(w, Machine(2, (), busy=2.0))
    causes = causes_in(said)
    assert causes[0].startswith("runs Python code")
    assert causes[1].startswith("is ready to run and gets no CPU")
    assert "other programs of this machine have the CPUs (1.7 of them)" in said


def test_a_thread_that_wakes_up_slowly_beside_free_cpus_is_no_other_programs_fault() -> None:
    w = trainer(6000).sees(1, "on", 6000, START, MAIN, at("score", 39)).exactly(1, 6000, 0, 4000)
    said = told(w, Machine(2, (), busy=0.6))
    assert "and CPUs are free" in said
    assert "other programs" not in said


def test_small_operators_are_told_from_large_ones() -> None:
    small, large = trainer(100), trainer(100)
    around = (
        at("Cell.forward", 14),
        "torch::autograd::THPVariable_mul [libtorch_python.so]",
        "at::_ops::mul_Tensor::call [libtorch_cpu.so]",
    )
    small.sees(1, "on", 5000, START, MAIN, *around, "c10::TensorImpl::TensorImpl [libc10.so]")
    small.sees(1, "on", 3000, START, MAIN, at("Cell.forward", 14), f"linear {TORCH}/nn/functional.py")
    large.sees(1, "on", 8000, START, MAIN, *around, "mul_kernel [libtorch_cpu.so]")
    assert "bookkeeping around small operators" in first(small)
    assert "Cell.forward (train.py:14)" in first(small)
    assert "bookkeeping" not in told(large)


def gang(late_more_ms: int = 4000) -> World:
    w = World()
    for rank in range(4):
        pid = 100 + rank
        w.process(pid, f"python train.py --rank {rank}", rank=rank)
        own = late_more_ms if rank == 2 else 0
        w.sees(pid, "on", 5000, *BACKWARD)
        if own:
            w.sees(pid, "on", own, START, MAIN, at("augment_twice", 66))
        w.sees(
            pid,
            "off",
            5000 - own,
            START,
            MAIN,
            at("train", 6),
            "c10d::Work::wait [libtorch_cpu.so]",
            "wait futex",
        )
    return w


def test_the_late_rank_is_named_with_what_it_does_meanwhile() -> None:
    said = told(gang())
    assert "waits for rank 2, a straggler" in re.sub(r"\s+", " ", said)
    assert "augment_twice (train.py:66)" in said.split("\n\n")[1]
    assert len(re.findall(r"late$", said, re.MULTILINE)) >= 1
    ranks = answer(report_of(gang().profile(), RULES))["ranks"]
    assert [(one["rank"], one["late"]) for one in ranks] == [(0, False), (1, False), (2, True), (3, False)]


def test_a_gang_in_which_all_wait_alike_has_no_late_rank() -> None:
    assert not any(one["late"] for one in answer(report_of(gang(0).profile(), RULES))["ranks"])
    assert "is a straggler" not in told(gang(0))


def test_the_json_has_all_that_the_contract_names() -> None:
    told = json.loads(json.dumps(answer(report_of(gang().profile(), RULES))))
    assert list(told["budget"]) == list(CATEGORIES)
    assert round(sum(told["budget"].values()), 6) == 100
    assert told["tier"] == "T0"
    assert {"samples", "drops", "rooted_pct", "symbolised_pct", "merge_mismatch_pct", "bpf_cpu_pct", "agent_cpu_pct"} <= set(told["quality"])  # fmt: skip
    assert set(told["steps"]) >= {"count", "p50_ms", "p99_ms"}
    assert told["steps"]["count"] is None
    assert [round(sum(one["budget"].values()), 6) for one in told["ranks"]] == [100] * 4
    for one in told["threads"]:
        assert sum(one["ns"].values()) == one["wall_ns"]


def test_few_samples_are_said() -> None:
    w = World().process(1).sees(1, "on", 100, *BACKWARD)
    assert "too few samples (10, 50 are needed)" in told(w)
    assert "too few" not in told(trainer())


def test_a_profile_of_nothing_is_said_to_be_one() -> None:
    lines = screen(report_of(Profile("T1", 0, 1, misses=("kernel stacks",)), RULES))
    assert "no samples of these processes" in lines[0]
    assert "kernel stacks" in "\n".join(lines)


def test_hostile_names_stay_within_the_screen() -> None:
    long = Frame("python", "f" * 500, "/home/" + "d" * 300 + ".py", 10**9)
    w = (
        World()
        .process(1, "x" * 1000)
        .sees(1, "on", 5000, START, long)
        .sees(1, "on", 5000, START, at("a\nb\x1b[31m", 1))
    )
    assert told(w)


def test_a_short_terminal_shows_the_causes_and_the_whole_budget() -> None:
    report = report_of(gang().profile(), RULES)
    full, short = screen(report), screen(report, rows=22)
    assert len(short) < len(full)
    shown = "\n".join(short[:22])
    causes = [line for line in full if re.match(r"\d+ % of the time", line)]
    assert all(line in shown for line in causes)
    assert "Where the training threads' time goes" in shown
    assert screen(report, rows=len(full)) == full
