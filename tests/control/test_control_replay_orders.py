"""Queue orders as policies of ``replay trace``: what each does with a few jobs, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.control.replay.workload import Assumptions, replay, scenario_of
from unidle.files.trace import COLUMNS, load_trace
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.fleet.queues import Order, QueueOrder
from unidle.store.memory import ForgetfulStore

HOUR = 3600
JOBS = {"first": (0, 2 * HOUR, 1), "wide": (1, HOUR, 2), "long": (2, 3 * HOUR, 1), "short": (3, HOUR, 1)}
SAVES = Assumptions(saves_on_stop=True, estimates="exact")


def fleet(gpus: int, order: Order = "attained", bound_h: float = 12) -> Fleet:
    devices = tuple(Device(f"n/{k}", "n", k, "gpu", "H100") for k in range(gpus))
    kept = QueueOrder(order, round(bound_h * HOUR * 1e9))
    return Fleet((Tier("site", "site"),), (Node("n", "site", devices),), order=kept)


def starts(
    tmp_path: Path, there: Fleet, policy: str, jobs: dict[str, tuple[int, int, int]], user: str = ""
) -> dict[str, list[int]]:
    """When each attempt of each job starts, in seconds after the first submission."""
    trace = tmp_path / "trace.csv"
    lines = [
        f"{n},{s},{d},{g},,,,default,0,true,1,{n.partition('-')[0] if user else ''}"
        for n, (s, d, g) in jobs.items()
    ]
    trace.write_text("\n".join([",".join((*COLUMNS, "user")), *lines]) + "\n")
    view = replay(scenario_of(load_trace(str(trace)), there), policy, ForgetfulStore(), SAVES)
    assert all(job.state == "succeeded" for job in view.jobs.values())
    return {job.id: [round(a.placed_ns / 1e9) for a in job.attempts] for job in view.jobs.values()}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # nobody passes the wide job, which needs both devices
        ("fifo", {"first": 0, "wide": 2 * HOUR, "long": 3 * HOUR, "short": 3 * HOUR}),
        # the short one ends before the wide one can start, the long one does not
        ("easy", {"first": 0, "wide": 2 * HOUR, "long": 3 * HOUR, "short": 3}),
        ("conservative", {"first": 0, "wide": 2 * HOUR, "long": 3 * HOUR, "short": 3}),
        # the long one was there first, and the wide one waits for both
        ("firstfit", {"first": 0, "long": 2, "short": 2 * HOUR, "wide": 3 * HOUR + 2}),
    ],
)  # fmt: skip
def test_who_passes_whom(tmp_path: Path, policy: str, expected: dict[str, int]) -> None:
    found = {job: attempts[0] for job, attempts in starts(tmp_path, fleet(2), policy, JOBS).items()}
    assert found == expected


def test_with_true_times_the_shortest_starts_first(tmp_path: Path) -> None:
    jobs = {"now": (0, HOUR, 1), "long": (1, 5 * HOUR, 1), "short": (2, HOUR, 1)}
    found = starts(tmp_path, fleet(1), "sjf-true", jobs)
    assert found == {"now": [0], "short": [HOUR], "long": [2 * HOUR]}


def test_qssf_orders_by_what_jobs_of_that_size_took(tmp_path: Path) -> None:
    jobs = {
        "s0": (0, HOUR, 1),
        "w0": (1, 4 * HOUR, 2),
        "w1": (2 * HOUR, 4 * HOUR, 2),
        "s1": (2 * HOUR + 1, HOUR, 1),
    }
    found = starts(tmp_path, fleet(2), "qssf", jobs)
    assert found["s1"] == [5 * HOUR], (
        "a device for an hour, as s0 took, before two for as long as any job took"
    )
    assert found["w1"] == [6 * HOUR]


@pytest.mark.parametrize("policy", ["las", "unidle"])
def test_a_job_that_had_much_service_is_stopped_for_a_new_one_and_goes_on(
    tmp_path: Path, policy: str
) -> None:
    jobs = {"old": (0, 10 * HOUR, 1), "new": (3 * HOUR, HOUR // 2, 1)}
    found = starts(tmp_path, fleet(1), policy, jobs)
    assert found["new"] == [3 * HOUR]
    assert found["old"] == [0, 3 * HOUR + HOUR // 2]


def test_the_last_that_came_of_the_latest_class_is_stopped(tmp_path: Path) -> None:
    jobs = {
        "a": (0, 10 * HOUR, 1),
        "b": (1, 10 * HOUR, 1),
        "c": (2, 10 * HOUR, 1),
        "new": (3 * HOUR, HOUR // 4, 1),
    }
    found = starts(tmp_path, fleet(3), "unidle", jobs)
    assert found == {"a": [0], "b": [1], "c": [2, 3 * HOUR + HOUR // 4], "new": [3 * HOUR]}


def test_a_job_whose_run_time_is_given_as_long_stops_no_other(tmp_path: Path) -> None:
    jobs = {"old": (0, 10 * HOUR, 1), "long": (3 * HOUR, 11 * HOUR, 1), "short": (4 * HOUR, HOUR // 4, 1)}
    found = starts(tmp_path, fleet(1, "predicted"), "unidle", jobs)
    assert len(found["long"]) == 1
    assert found["long"][0] > 10 * HOUR
    assert found["short"] == [4 * HOUR]


def test_with_fifo_nobody_is_stopped(tmp_path: Path) -> None:
    jobs = {"old": (0, 10 * HOUR, 1), "new": (3 * HOUR, HOUR // 2, 1)}
    assert starts(tmp_path, fleet(1, "fifo"), "unidle", jobs)["new"] == [10 * HOUR]


def test_a_job_that_fell_behind_by_three_quarters_of_the_bound_is_passed_no_more(tmp_path: Path) -> None:
    jobs = {"old": (0, 20 * HOUR, 1)} | {f"new{k:02}": (3 * HOUR + k * HOUR // 2, HOUR, 1) for k in range(30)}
    found = starts(tmp_path, fleet(1, bound_h=8 / 3), "unidle", jobs)
    assert found["old"] == [0, 5 * HOUR], "it waited for two hours, and then ran to its end"
    assert starts(tmp_path, fleet(1, bound_h=100), "unidle", jobs)["old"][1] > 15 * HOUR


def test_users_have_their_turns_where_the_order_is_fair(tmp_path: Path) -> None:
    jobs = {"a-0": (0, 600, 2), "a-1": (1, 600, 1), "a-2": (2, 600, 1), "b-1": (3, 600, 1)}
    fair = starts(tmp_path, fleet(2, "fair"), "unidle", jobs, user="by name")
    assert (fair["a-1"], fair["b-1"]) == ([600], [600])
    assert fair["a-2"] == [1200]
    assert starts(tmp_path, fleet(2, "fifo"), "unidle", jobs, user="by name")["a-2"] == [600]
