from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.worlds import STD, TORCH, World, at
from unidle.scope.budget import budgets_of, percentages
from unidle.scope.merge import merge
from unidle.scope.model import Profile
from unidle.scope.rules import CATEGORIES, RuleSet
from unidle.scope.rules_file import shipped

RULES = RuleSet(shipped())
FORWARD = (
    "_start [python3.11]",
    at("train", 5),
    f"forward {TORCH}/nn/modules/linear.py",
    "sgemm_ [libtorch_cpu.so]",
)
LOADER = (at("train", 4), f"_MultiProcessingDataLoaderIter._next_data {TORCH}/utils/data/dataloader.py", f"select {STD}/selectors.py", "wait poll")  # fmt: skip
BACKWARD = (at("train", 6), "THPEngine_run_backward [libtorch_python.so]", "sgemm_ [libtorch_cpu.so]")
SAVE = (at("keep", 9), f"save {TORCH}/serialization.py", "wait write file")
PEERS = (at("train", 6), "c10d::Work::wait [libtorch_cpu.so]", "wait futex")
SPIN = (at("spin", 2),)
STACKS = (FORWARD, LOADER, BACKWARD, SAVE, PEERS, SPIN, ("strange [x.so]", "wait ioctl"))

seen = st.lists(
    st.tuples(
        st.sampled_from([(10, 10), (10, 11), (20, 20), (30, 30)]),
        st.sampled_from(["on", "off", "runq"]),
        st.integers(1, 10**6),
        st.sampled_from(STACKS),
    ),
    min_size=1,
    max_size=40,
)
exact = st.dictionaries(
    st.sampled_from([(10, 10), (10, 11), (20, 20), (40, 40)]),
    st.tuples(*[st.integers(0, 10**7)] * 3),
    max_size=4,
)


def world(samples: list, times: dict | None = None) -> Profile:
    w = World()
    for (pid, tid), state, ms, stack in samples:
        w.sees(pid, state, ms, *stack, tid=tid)
    for (pid, tid), (on, off, runq) in (times or {}).items():
        w.exactly(pid, on, off, runq, tid=tid)
    return w.profile()


@given(seen, exact)
def test_each_nanosecond_of_a_thread_has_one_category(samples: list, times: dict) -> None:
    profile = world(samples, times)
    budgets = budgets_of(profile, RULES)
    walls = {(t.pid, t.tid): t.on_ns + t.off_ns + t.runq_ns for t in profile.threads}
    for key, one in budgets.threads.items():
        assert sum(one.ns.values()) == sum(cell.ns for cell in one.cells) == one.wall_ns == walls[key]
        assert all(ns >= 0 for ns in one.ns.values())
        assert round(sum(percentages(one.ns).values()), 6) == 100.0
        assert all(0 <= width <= 100 for width in one.interval_pct.values())
    assert {key for key, wall in walls.items() if wall} == set(budgets.threads)


@given(seen, st.randoms(use_true_random=False))
def test_the_order_of_samples_and_the_numbers_of_stacks_do_not_matter(
    samples: list, chance: random.Random
) -> None:
    first = budgets_of(world(samples), RULES)
    shuffled = list(samples)
    chance.shuffle(shuffled)
    second = budgets_of(world(shuffled), RULES)
    assert {key: one.ns for key, one in first.threads.items()} == {
        key: one.ns for key, one in second.threads.items()
    }
    assert first.roles.subjects == second.roles.subjects
    assert first.roles.kinds == second.roles.kinds


@given(seen, seen)
def test_two_looks_merged_have_the_time_of_both(a: list, b: list) -> None:
    one, two = world(a), world(b)
    both = budgets_of(merge([one, two]), RULES, roles := budgets_of(merge([one, two]), RULES).roles)
    parts = [budgets_of(part, RULES, roles) for part in (one, two)]
    for key, found in both.threads.items():
        wall = sum(part.threads[key].wall_ns for part in parts if key in part.threads)
        assert found.wall_ns == wall
        if not any(cell.rule.waits_for for cell in found.cells):
            for category in CATEGORIES:
                assert found.ns[category] == sum(
                    p.threads[key].ns[category] for p in parts if key in p.threads
                )


@given(st.dictionaries(st.sampled_from(CATEGORIES), st.integers(0, 10**15)), st.integers(0, 3))
def test_percentages_sum_to_100_in_decimal(ns: dict, places: int) -> None:
    shares = percentages(ns, places)
    assert list(shares) == list(CATEGORIES)
    assert sum(round(share * 10**places) for share in shares.values()) == 100 * 10**places


def test_exact_times_of_the_kernel_go_before_samples() -> None:
    w = World().sees(1, "on", 100, *FORWARD).sees(1, "on", 300, *SPIN).sees(1, "off", 50, *LOADER)
    one = budgets_of(w.exactly(1, 4000, 5000, 1000).profile(), RULES).threads[1, 1]
    assert one.wall_ns == 10_000_000_000
    assert one.ns["compute"] == 1_000_000_000
    assert one.ns["python"] == 3_000_000_000
    assert one.ns["data"] == 5_000_000_000
    assert one.ns["cpu_contention"] == 1_000_000_000


def test_time_that_was_not_sampled_is_other_and_waiting_for_a_cpu_is_not() -> None:
    one = budgets_of(World().exactly(1, 3, 4, 5).profile(), RULES).threads[1, 1]
    assert (one.ns["other"], one.ns["cpu_contention"]) == (7_000_000, 5_000_000)
    assert one.few


def test_a_wait_for_a_cpu_belongs_to_the_line_that_wants_to_run() -> None:
    w = World().sees(1, "on", 100, *SPIN).exactly(1, 100, 0, 900)
    cells = [cell for cell in budgets_of(w.profile(), RULES).threads[1, 1].cells if cell.state == "runq"]
    assert [(cell.rule.category, cell.stack is None, cell.ns) for cell in cells] == [
        ("cpu_contention", False, 900_000_000)
    ]


def test_the_interval_narrows_with_samples_and_knows_the_exact_states() -> None:
    few = budgets_of(World().sees(1, "on", 100, *FORWARD).sees(1, "on", 100, *SPIN).profile(), RULES).threads[
        1, 1
    ]
    many = budgets_of(
        World().sees(1, "on", 10_000, *FORWARD).sees(1, "on", 10_000, *SPIN).profile(), RULES
    ).threads[1, 1]
    assert many.interval_pct["compute"] < few.interval_pct["compute"] / 5
    assert 2 < many.interval_pct["compute"] < 3  # 1.96 * sqrt(1/4 / 2000)
    waits = budgets_of(World().sees(1, "runq", 100, *SPIN).profile(), RULES).threads[1, 1]
    assert waits.interval_pct["cpu_contention"] == 0


def test_a_main_thread_that_joins_the_one_that_trains_is_not_the_training_thread() -> None:
    join = (
        at("main", 30),
        f"join {STD}/threading.py",
        "lock_PyThread_acquire_lock [libpython3.11.so.1.0]",
        "wait futex",
    )
    w = (
        World()
        .sees(1, "off", 10_000, *join)
        .sees(1, "on", 8000, *BACKWARD, tid=2)
        .sees(1, "off", 2000, *LOADER, tid=2)
    )
    budgets = budgets_of(w.profile(), RULES)
    assert [(s.pid, s.tid) for s in budgets.roles.subjects] == [(1, 2)]
    assert budgets.training[0].ns["compute"] == 8_000_000_000
    # and what the main thread waits for is what that thread does
    assert budgets.threads[1, 1].ns["compute"] == 8_000_000_000
    assert budgets.threads[1, 1].ns["data"] == 2_000_000_000


def test_a_wait_for_a_thread_that_has_no_work_is_a_lock() -> None:
    waits = (
        at("main", 30),
        f"wait {STD}/threading.py",
        "lock_PyThread_acquire_lock [libpython3.11.so.1.0]",
        "wait futex",
    )
    rests = (f"run {TORCH}/../tqdm/_monitor.py", f"wait {STD}/threading.py", "wait futex")
    w = (
        World()
        .sees(1, "off", 9000, *waits)
        .sees(1, "on", 1000, *BACKWARD)
        .sees(1, "off", 10_000, *rests, tid=2)
    )
    assert budgets_of(w.profile(), RULES).threads[1, 1].ns["lock"] == 9_000_000_000


def test_the_autograd_thread_lends_its_category_to_the_one_that_waits_for_it() -> None:
    waits = (at("train", 6), "THPEngine_run_backward [libtorch_python.so]", "torch::autograd::Engine::execute [libtorch_cpu.so]", "wait futex")  # fmt: skip
    sync = (
        "torch::autograd::Engine::thread_init [libtorch_cpu.so]",
        "cudaStreamSynchronize [libcudart.so.12]",
    )
    w = World().sees(1, "off", 1000, *waits).sees(1, "on", 1000, *FORWARD).sees(1, "on", 2000, *sync, tid=7)
    w.sees(
        1,
        "off",
        2000,
        f"_feed {STD}/multiprocessing/queues.py",
        f"wait {STD}/threading.py",
        "wait futex",
        tid=8,
    )
    assert budgets_of(w.profile(), RULES).threads[1, 1].ns["device_sync"] == 1_000_000_000


def test_loaders_pools_helpers_launchers_and_ranks_are_told_apart() -> None:
    w = World().process(1, "python train.py").process(2, parent=1).process(3, parent=1).process(4, parent=2)
    w.process(5, parent=1).process(6, parent=1).process(7, parent=1)
    w.sees(1, "off", 9000, at("<module>", 40), f"ProcessContext.join {TORCH}/multiprocessing/spawn.py", f"wait {STD}/multiprocessing/connection.py", "wait poll")  # fmt: skip
    for pid in (2, 3):
        w.sees(pid, "on", 5000, *BACKWARD).sees(pid, "off", 4000, *PEERS)
    w.sees(4, "on", 9000, f"_worker_loop {TORCH}/utils/data/_utils/worker.py", at("__getitem__", 3))
    w.sees(5, "on", 9000, f"worker {STD}/multiprocessing/pool.py", at("work", 3))
    w.sees(6, "off", 9000, f"main {STD}/multiprocessing/resource_tracker.py", "wait read pipe")
    roles = budgets_of(w.profile(), RULES).roles
    assert dict(roles.kinds) == {
        1: "launcher",
        2: "rank",
        3: "rank",
        4: "loader",
        5: "pool",
        6: "helper",
        7: "program",
    }
    assert [(s.pid, s.rank, s.rank_is_inferred) for s in roles.subjects] == [(2, 0, True), (3, 1, True)]


def test_ranks_are_those_that_say_so_and_not_what_inherited_their_environment() -> None:
    w = World().process(5, rank=1).process(4, rank=0).process(6, parent=5, rank=1)
    for pid in (4, 5, 6):
        w.sees(pid, "on", 1000, *BACKWARD)
    roles = budgets_of(w.profile(), RULES).roles
    assert [(s.rank, s.pid) for s in roles.subjects] == [(0, 4), (1, 5)]


def test_a_shell_that_started_the_program_is_not_what_is_asked_about() -> None:
    w = World().process(1, "sh -c run").process(2, parent=1)
    w.sees(1, "off", 10_000, "wait4 [libc.so.6]", "wait wait child").sees(2, "on", 9000, *SPIN)
    assert [s.pid for s in budgets_of(w.profile(), RULES).roles.subjects] == [2]


def test_streams_of_a_device_are_no_threads() -> None:
    w = World().sees(1, "on", 100, *BACKWARD).sees(1, "on", 9000, "gemm [libcublas.so]", tid=-3)
    budgets = budgets_of(w.profile(), RULES)
    assert list(budgets.threads) == [(1, 1)]


def test_a_profile_of_nothing_has_no_budget() -> None:
    empty = Profile("T0", 0, 1)
    budgets = budgets_of(empty, RULES)
    assert budgets.training == ()
    assert percentages(budgets.total_ns)["other"] == 100.0
    assert replace(empty) == empty


@pytest.mark.parametrize("stack", STACKS)
def test_what_the_tests_assume_of_stacks_holds(stack: tuple) -> None:
    profile = World().sees(1, "on", 1, *stack).profile()
    assert profile.stack(0)
