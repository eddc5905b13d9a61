"""Why a job of a replay waits, in figures that are counted again here from what runs, without the scheduler."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from unidle.control.forecast import Forecaster
from unidle.control.policies import policy_names
from unidle.control.queries.describe import explain
from unidle.control.queries.dry_run import next_decision, submitted
from unidle.control.replay.workload import Assumptions, replay, scenario_of
from unidle.files.fleet import fleet_from_mapping
from unidle.files.trace import COLUMNS, OPTIONAL, load_trace
from unidle.fleet import Fleet
from unidle.fleet.queues import QueueSpec
from unidle.jobs import NEVER, JobSpec, Topology
from unidle.store.memory import MemoryStore
from unidle.view.jobs import JobView
from unidle.view.state import View

S = 1_000_000_000
POLICIES = policy_names()
Line = dict[str, object]


def fleet(nodes: int, gpus: int, *queues: QueueSpec) -> Fleet:
    devices = {"count": gpus, "kind": "gpu", "model": "H100"}
    return fleet_from_mapping(
        {
            "tiers": [{"id": "s", "kind": "spine"}, {"id": "leaf-[1-2]", "kind": "leaf", "parent": "s"}],
            "nodes": [
                {"id": f"n{k}", "parent": f"leaf-{k % 2 + 1}", "devices": devices, "cpus": 64, "memory": "256GiB"}
                for k in range(nodes)
            ],
            **({"queues": [queue_line(q) for q in queues]} if queues else {}),
        },
        "test",
    )  # fmt: skip


def queue_line(queue: QueueSpec) -> dict[str, object]:
    said = {"name": queue.name, "parent": queue.parent, "deserved": dict(queue.deserved or {})}
    said |= {"limit": dict(queue.limit or {}), "guarantee": dict(queue.guarantee or {}), "kind": queue.kind}
    return {key: value for key, value in said.items() if value}


def after(
    tmp_path: Path, there: Fleet, lines: list[Line], until_s: float, policy: str = "unidle", **assumed: object
) -> View:
    """A replay of the lines (``gpus`` is 1, ``ranks`` as many as that), stopped so long after the first."""
    columns = (*COLUMNS, *OPTIONAL)
    rows = [
        {**dict.fromkeys(columns, ""), "job": f"j{k}", "gpus": 1, "ranks": line.get("gpus", 1), **line}
        for k, line in enumerate(lines)
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([",".join(columns), *(",".join(str(r[c]) for c in columns) for r in rows)]))
    scenario = scenario_of(load_trace(path), there)
    until_ns = scenario.start_ns + round(until_s * S)
    given = Assumptions(**{"estimates": "exact", **assumed})  # type: ignore[arg-type]
    return replay(scenario, policy, MemoryStore(), given, until_ns=until_ns)


# -- counted by hand -------------------------------------------------------------------------------------


def free_by_node(view: View) -> dict[str, int]:
    free = {node.id: len(node.devices) for node in view.fleet.nodes if node.id not in view.health}
    for job in view.jobs.open.values():
        if job.live is not None:
            for place in job.live.places:
                free[place.node] -= len(place.slices)
    return free


def used_by(view: View, queues: set[str], *, firm: bool = False) -> int:
    """Devices under jobs of these queues, in thousandths; ``firm``: of those that are never stopped."""
    running = [j for j in view.jobs.open.values() if j.live is not None and j.spec.queue in queues]
    return 1000 * sum(j.spec.devices for j in running if not (firm and j.spec.preemption == "low"))


def ends_ns(view: View) -> list[tuple[int, int]]:
    """When each running job is to end by its estimate, and how many devices that gives back."""
    running = [job for job in view.jobs.open.values() if job.live is not None]
    found = [
        (j.live.placed_ns + int(j.spec.estimate_s * S), j.spec.devices)
        for j in running
        if j.live and j.spec.estimate_s
    ]
    return sorted(found)


def enough_ns(view: View, needs: int) -> int:
    """The first moment at which so many devices are free, if nobody else took any."""
    free = sum(free_by_node(view).values())
    for end_ns, devices in ends_ns(view):
        if free >= needs:
            break
        free, at_ns = free + devices, end_ns
    assert free >= needs
    return at_ns


def waits(view: View, job: str) -> tuple[str, dict[str, object], str]:
    found = explain(view, view.jobs[job])["waiting"]["now"]
    return found["code"], found, found["text"]


# -- each reason -----------------------------------------------------------------------------------------


def test_a_job_that_does_not_fit_is_told_how_many_are_free_and_when_enough_will_be(tmp_path: Path) -> None:
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 4},
        {"submit_s": 0, "duration_s": 200, "gpus": 2},
        {"submit_s": 10, "duration_s": 50, "gpus": 8},
    ]
    view = after(tmp_path, fleet(2, 4), lines, 20)
    code, said, text = waits(view, "j2")
    assert (code, said["needs"], said["free"], said["devices"]) == ("reserved", 8, 2, 8)
    assert sum(free_by_node(view).values()) == 2
    assert said["planned_start_ns"] == enough_ns(view, 8)
    assert text.startswith("needs 8 GPUs, 2 of 8 are free for it; room is reserved for it, in 180 s")
    assert (
        explain(view, view.jobs["j2"])["waiting"]["in_the_way"][0]["unblock"]
        == "free the devices of 6 more ranks"
    )


def test_a_shorter_job_may_pass_a_planned_one_and_a_longer_one_is_told_that_room_is_kept(
    tmp_path: Path,
) -> None:
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 6},
        {"submit_s": 10, "duration_s": 50, "gpus": 8},
        {"submit_s": 11, "duration_s": 40, "gpus": 1},
        {"submit_s": 12, "duration_s": 500, "gpus": 2},
    ]
    view = after(tmp_path, fleet(2, 4), lines, 20)
    assert view.jobs["j2"].live is not None
    code, said, text = waits(view, "j3")
    assert (code, said["needs"], said["free"]) == ("planned", 2, 1)
    assert sum(free_by_node(view).values()) == 1
    # after the one that is planned before it: 100 s until it starts, 50 that it runs
    assert said["planned_start_ns"] == enough_ns(view, 8) + 50 * S
    view = after(tmp_path, fleet(2, 4), [*lines[:2], lines[3]], 20)
    code, said, text = waits(view, "j2")
    assert (code, said["asked"], said["bound"]) == ("behind", 2000, 8000)
    assert said["used"] == 8000  # what is planned for when those six have ended
    assert sum(free_by_node(view).values()) == 2
    assert "it would still run when a job before it is planned to start" in text


def test_a_long_job_may_start_beside_a_planned_one_where_both_fit_then(tmp_path: Path) -> None:
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 4},
        {"submit_s": 0, "duration_s": 60, "gpus": 2},
        {"submit_s": 10, "duration_s": 50, "gpus": 6},
        {"submit_s": 12, "duration_s": 500, "gpus": 2},
    ]
    view = after(tmp_path, fleet(2, 4), lines, 20)
    # at 100 s the four have ended: six are planned, and two go on
    assert view.jobs["j3"].live is not None
    _, said, _ = waits(view, "j2")
    assert said["planned_start_ns"] == view.first_ns + 100 * S


def test_a_job_over_its_queues_limit_is_told_what_is_used_and_what_it_may_use(tmp_path: Path) -> None:
    queues = (QueueSpec("a", limit={"gpu": 4}), QueueSpec("b"))
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 3, "queue": "a"},
        {"submit_s": 10, "duration_s": 50, "gpus": 2, "queue": "a"},
    ]
    view = after(tmp_path, fleet(2, 4, *queues), lines, 20)
    code, said, text = waits(view, "j1")
    assert (code, said["queue"], said["resource"], said["asked"]) == ("quota", "a", "gpu", 2000)
    assert said["used"] == used_by(view, {"a"}) == 3000
    assert said["bound"] == 4000
    assert text == "a uses 3 gpu of at most 4, and the job needs 2"
    assert said["planned_start_ns"] == ends_ns(view)[0][0]


def test_a_parents_limit_counts_all_queues_below_it(tmp_path: Path) -> None:
    queues = (
        QueueSpec("lab", limit={"gpu": 5}),
        QueueSpec("x", "lab"),
        QueueSpec("y", "lab"),
        QueueSpec("z"),
    )
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 3, "queue": "x"},
        {"submit_s": 1, "duration_s": 300, "gpus": 1, "queue": "y"},
        {"submit_s": 10, "duration_s": 50, "gpus": 2, "queue": "y"},
    ]
    view = after(tmp_path, fleet(2, 4, *queues), lines, 20)
    code, said, _ = waits(view, "j2")
    assert (code, said["queue"], said["bound"]) == ("quota", "lab", 5000)
    assert said["used"] == used_by(view, {"x", "y"}) == 4000


def test_room_that_is_kept_for_another_queue_is_named_with_its_guarantee(tmp_path: Path) -> None:
    queues = (QueueSpec("a"), QueueSpec("b", guarantee={"gpu": 4}))
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 4, "queue": "a"},
        {"submit_s": 10, "duration_s": 50, "gpus": 2, "queue": "a"},
    ]
    view = after(tmp_path, fleet(2, 4, *queues), lines, 20)
    code, said, _ = waits(view, "j1")
    assert code == "quota"
    assert said["used"] == used_by(view, {"a"}) == 4000
    assert said["bound"] == 8000 - 4000
    assert sum(free_by_node(view).values()) == 4


def test_a_queue_that_takes_back_what_is_its_own_says_whom_it_stops(tmp_path: Path) -> None:
    queues = (QueueSpec("a", deserved={"gpu": 4}), QueueSpec("b", deserved={"gpu": 4}))
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 1000, "gpus": 4, "queue": "a", "preemptible": "true"},
        {"submit_s": 0, "duration_s": 1000, "gpus": 4, "queue": "a", "preemptible": "true"},
        {"submit_s": 30, "duration_s": 50, "gpus": 4, "queue": "b"},
    ]
    there = fleet(2, 4, *queues)
    view = after(tmp_path, there, lines, 60)
    assert view.jobs["j2"].live is not None
    stopped = [j for j in view.jobs.values() if j.attempts and j.attempts[0].outcome == "preempted"]
    (victim,) = stopped
    code, said, _ = waits(view, victim.id)
    assert said["free"] == sum(free_by_node(view).values()) == 0
    assert code in ("reserved", "planned")
    assert victim.attempts[0].stop is not None
    assert victim.attempts[0].stop.for_job == "j2"


def test_a_job_for_which_others_leave_is_told_what_is_held_for_it(tmp_path: Path) -> None:
    queues = (QueueSpec("a", deserved={"gpu": 4}), QueueSpec("b", deserved={"gpu": 4}))
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 1000, "gpus": 4, "queue": "a", "preemptible": "true"},
        {"submit_s": 0, "duration_s": 1000, "gpus": 4, "queue": "a", "preemptible": "true"},
        {"submit_s": 30, "duration_s": 50, "gpus": 3, "queue": "b"},
    ]
    view = after(tmp_path, fleet(2, 4, *queues), lines, 34, stop_s=8)
    code, _, text = waits(view, "j2")
    assert (code, text) == ("gathering", "3 devices are held for it, and not all of them are free yet")
    assert sum(view.promised["j2"].devices.values()) == 3
    assert sum(free_by_node(view).values()) == 0
    stops = [job.live.stop for job in view.jobs.open.values() if job.live is not None and job.live.stop]
    assert [stop.for_job for stop in stops] == ["j2"]


def test_devices_of_a_broken_node_are_not_free(tmp_path: Path) -> None:
    lines: list[Line] = [{"submit_s": 0, "duration_s": 1000, "gpus": 1} for _ in range(2)]
    lines.append({"submit_s": 0, "duration_s": 1000, "gpus": 8})
    view = after(tmp_path, fleet(3, 4), lines, 600, mtbf_s=600, mttr_s=10**6, seed=2)
    assert view.health
    waiting = [job for job in view.jobs.open.values() if job.live is None]
    assert waiting
    for job in waiting:
        _, said, _ = waits(view, job.id)
        assert said["free"] == sum(free_by_node(view).values())


def test_a_replay_of_another_policy_is_explained_by_that_policy(tmp_path: Path) -> None:
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 3, "ranks": 1},
        {"submit_s": 0, "duration_s": 100, "gpus": 3, "ranks": 1},
        {"submit_s": 10, "duration_s": 50, "gpus": 2, "ranks": 1},
    ]
    for policy in ("firstfit", "bestfit", "spread"):
        view = after(tmp_path, fleet(2, 4), lines, 20, policy)
        assert view.policy == policy
        code, said, _ = waits(view, "j2")
        assert (code, said["needs"], said["devices"]) == ("no_fit", 2, 8)
        # a rank of two finds no node with two: what is left cannot be used by it
        assert sorted(free_by_node(view).values()) == [1, 1]
        assert said["free"] == 0


def test_what_explain_says_leaves_the_view_as_it_was(tmp_path: Path) -> None:
    lines: list[Line] = [{"submit_s": k, "duration_s": 100, "gpus": 5} for k in range(3)]
    view = after(tmp_path, fleet(2, 4), lines, 20)
    before = (set(view.queue.codes()), set(view.unjudged), view.jobs["j1"].verdict)
    first = explain(view, view.jobs["j1"])
    assert explain(view, view.jobs["j1"]) == first
    assert (set(view.queue.codes()), set(view.unjudged), view.jobs["j1"].verdict) == before


# -- any job of any replay -------------------------------------------------------------------------------


def busy(seed: int, count: int) -> list[Line]:
    chance = random.Random(seed)
    at, lines = 0.0, list[Line]()
    for _ in range(count):
        at += chance.expovariate(1 / 20)
        gpus = chance.choice([1, 1, 2, 4, 8, 12])
        lines.append(
            {"submit_s": round(at, 3), "duration_s": round(chance.uniform(50, 900), 3), "gpus": gpus,
             "ranks": gpus, "queue": chance.choice("ab"), "preemptible": chance.choice(["true", "false"])}
        )  # fmt: skip
    return lines


def check(view: View, job: JobView, limits: dict[str, int]) -> str:
    """The reason of a waiting job holds by hand; returns its code."""
    code, said, text = waits(view, job.id)
    free = free_by_node(view)
    if code in ("planned", "reserved", "no_fit", "never_free", "depth"):
        assert said["needs"] == job.spec.devices, text
        assert said["free"] == sum(free.values()), text
        assert said["devices"] == sum(len(node.devices) for node in view.fleet.nodes), text
    if code in ("planned", "reserved"):
        at_ns = said["planned_start_ns"]
        assert isinstance(at_ns, int)
        assert at_ns > view.time_ns
        if said["free"] < job.spec.devices:  # type: ignore[operator]
            assert at_ns >= enough_ns(view, job.spec.devices), text
        else:
            assert "kept for jobs before it" in text
    if code == "quota":
        queue = said["queue"]
        assert isinstance(queue, str)
        assert said["asked"] == 1000 * job.spec.devices
        if "at most" in text:
            assert (said["used"], said["bound"]) == (used_by(view, {queue}), 1000 * limits[queue]), text
        assert said["used"] + said["asked"] > said["bound"], text  # type: ignore[operator]
    if code == "behind":
        assert said["used"] + said["asked"] > said["bound"], text  # type: ignore[operator]
    return code


@pytest.mark.parametrize("policy", POLICIES)
def test_the_reason_of_every_waiting_job_holds_when_it_is_counted_again(policy: str, tmp_path: Path) -> None:
    there = fleet(3, 8, QueueSpec("a", limit={"gpu": 16}), QueueSpec("b", deserved={"gpu": 8}))
    codes: set[str] = set()
    waiting = 0
    for seed, until_s in ((1, 300), (2, 700), (3, 1200)):
        view = after(tmp_path, there, busy(seed, 60), until_s, policy)
        for job in list(view.jobs.open.values()):
            if job.live is None:
                waiting += 1
                codes.add(check(view, job, {"a": 16}))
    assert waiting > 15
    assert codes
    if policy == "unidle":
        assert {"reserved", "planned", "quota"} <= codes


# -- what would help -------------------------------------------------------------------------------------


def test_a_quota_in_the_way_says_what_would_help(tmp_path: Path) -> None:
    lines: list[Line] = [
        {"submit_s": 0, "duration_s": 100, "gpus": 3, "queue": "a"},
        {"submit_s": 10, "duration_s": 50, "gpus": 3, "queue": "a"},
    ]
    view = after(tmp_path, fleet(2, 4, QueueSpec("a", limit={"gpu": 4}), QueueSpec("b")), lines, 20)
    said = explain(view, view.jobs["j1"])["waiting"]
    assert said["now"]["code"] == "quota"
    assert said["in_the_way"][0]["unblock"] == "2 gpu less in use by a, or a limit that is as much higher"


@pytest.mark.parametrize(
    ("ranks", "queue", "code"), [(9, "a", "never_fits"), (1, "nobody", "no_queue"), (5, "b", "over_limit")]
)
def test_a_job_that_can_never_start_is_promised_no_start_and_no_remedy(
    tmp_path: Path, ranks: int, queue: str, code: str
) -> None:
    lines: list[Line] = [{"submit_s": 0, "duration_s": 100, "gpus": 3, "queue": "a"}]
    view = after(tmp_path, fleet(2, 4, QueueSpec("a"), QueueSpec("b", limit={"gpu": 4})), lines, 20)
    job = submitted(view, JobSpec(("x",), ranks=ranks, device="gpu", queue=queue))
    said = explain(view, job)["waiting"]
    assert (said["now"]["code"], said["in_the_way"], said["expected_start_ns"]) == (code, [], None)
    assert code in NEVER
    view.queue.judge(job, next_decision(view, job).because)
    assert Forecaster.of(view).starts(view, view.time_ns, [job.id]) == []


def test_a_job_that_never_fits_its_tier_is_told_where_it_would_fit_without(tmp_path: Path) -> None:
    view = after(tmp_path, fleet(4, 4), [{"submit_s": 0, "duration_s": 100, "gpus": 3}], 20)
    job = submitted(view, JobSpec(("x",), ranks=9, device="gpu", topology=Topology(require="leaf")))
    said = explain(view, job)["waiting"]
    assert said["now"]["code"] == "never_fits"
    assert [line["unblock"] for line in said["in_the_way"]] == ["drop this constraint, in spine s"]
