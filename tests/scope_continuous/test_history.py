"""Profiles of the past, by job, time, attempt and rank, and what changed between two of them."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import replace

import pytest

from e2e.commands import unidle
from scope_continuous.profiles import S, profile, times
from sim.worlds import fleet_of
from unidle.cli.profile_history import Question, answer_of, difference_json, difference_lines
from unidle.errors import BadInput, CannotRun, TargetEnded
from unidle.events import types as ev
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.scope import history
from unidle.scope.continuous import windows
from unidle.scope.rules_file import all_rules
from unidle.store.open import open_store
from unidle.store.profiles import ProfileRow, ProfileShelf
from unidle.store.protocol import NewEvent

NOW = 0


@pytest.fixture(autouse=True)
def the_time_of_the_test():
    """A long run imports this file half an hour before its tests, and commands read the clock."""
    global NOW
    NOW = time.time_ns()


def row(
    ago_s: float,
    function: str,
    ms: int = 1000,
    *,
    rank: int = 0,
    attempt: int = 1,
    looks: int = 1,
    pid: int = 10,
) -> ProfileRow:
    start_ns = NOW - int(ago_s * S)
    made = profile(
        (f"main;{function}", ms), ("main;idle", 2000 - ms), pid=pid + rank, start_s=1000 - ago_s, rank=rank
    )
    return ProfileRow("job-1", start_ns, attempt, rank, start_ns + 2 * S, looks, windows.packed(made))


@pytest.fixture
def store(tmp_path):
    """A store with one job of two attempts that was not profiled yet."""
    path = str(tmp_path / "s.db")
    why = Reason("test", "test")
    told = [
        ev.ControllerStarted("test", 1, S),
        ev.FleetSeen(fleet_of(2)),
        ev.JobSubmitted("job-1", JobSpec(("train",), ranks=2)),
        ev.AttemptPlaced("job-1", 1, tuple(RankPlace(k, "n0", (f"n0/{k}",)) for k in range(2)), why),
        ev.AttemptEnded("job-1", 1, "failed", why),
        ev.RetryPlanned("job-1", 0, why),
        ev.AttemptPlaced("job-1", 2, tuple(RankPlace(k, "n0", (f"n0/{k}",)) for k in range(2)), why),
    ]
    with closing(open_store(path, create=True)) as opened:
        lease = opened.acquire("test")
        encoded = [ev.encode(event) for event in told]
        opened.append(
            lease, [NewEvent(NOW - 9000 * S + n, "control", n, *one) for n, one in enumerate(encoded)]
        )
        yield path, ProfileShelf(opened, lease.token)


def test_hosts_look_when_they_are_due_and_their_windows_are_next_to_each_other(store):
    path, shelf = store
    here, there = windows.APART + 10, 2 * windows.APART + 10
    for ago_s in (300, 200):
        shelf.add([row(ago_s, "f", pid=here), row(ago_s - 7.5, "f", rank=1, pid=there)])
    found = answer_of(Question("job-1", path, since="1h"))
    assert found.profile.seconds == 4 and times(found.profile) == {"main;f": 4000, "main;idle": 4000}
    assert sorted(p.rank for p in found.profile.processes) == [0, 1]
    assert found.source.startswith("2 looks at 2 ranks")


def test_windows_that_overlap_the_time_are_one_profile(store):
    path, shelf = store
    shelf.add([row(7200, "old"), row(1800, "new"), row(1740, "new", rank=1), row(60, "new")])
    found = answer_of(Question("job-1", path, since="1h"))
    assert times(found.profile) == {"main;new": 3000, "main;idle": 3000}
    assert found.source.startswith("2 looks at 2 ranks of attempt 1")
    assert times(answer_of(Question("job-1", path, until="1h")).profile)["main;old"] == 1000
    assert times(answer_of(Question("job-1", path, since="1h", rank=1)).profile) == {
        "main;new": 1000,
        "main;idle": 1000,
    }
    (only,) = answer_of(Question("job-1", path, since="1h", rank=1)).profile.processes
    assert only.rank == 1


def test_a_window_at_the_edge_counts(store):
    _, shelf = store
    shelf.add([row(60, "f")])
    now = history.WindowQuery("job-1", NOW - 59 * S, NOW)
    assert history.read(shelf, now).looks == 1
    assert history.read(shelf, replace(now, since_ns=NOW - 58 * S)).profile is None


def test_two_attempts_with_the_same_process_number_stay_apart(store):
    path, shelf = store
    shelf.add([row(600, "first", attempt=1), row(60, "second", attempt=2)])
    both = answer_of(Question("job-1", path, since="1h"))
    assert len({p.pid for p in both.profile.processes}) == 2 and "attempts 1 to 2" in both.source
    assert "main;first" not in times(answer_of(Question("job-1", path, attempt=2)).profile)


@pytest.mark.parametrize(
    "question",
    [
        {"since": "1h", "against": "3h..1h"},
        {"attempt": 2, "against_attempt": 1, "rank": 0},
        {"attempt": 2, "rank": 0, "against_rank": 1},
    ],
)
def test_two_windows_ranks_or_attempts_are_compared(store, question):
    path, shelf = store
    shelf.add([row(7200, "slow", 200), row(7100, "slow", 200)])
    shelf.add([row(60 + k, "slow", 1800, attempt=2) for k in range(0, 50, 10)])
    shelf.add([row(60 + k, "slow", 300, attempt=2, rank=1) for k in range(0, 50, 10)])
    if "since" in question:
        question["rank"] = 0
    found = answer_of(Question("job-1", path, **question))
    assert found.other is not None
    text = "\n".join(difference_lines(found, all_rules()))
    assert "slow (train.py)" in text
    (told,) = [f for f in difference_json(found, all_rules())["functions"] if f["function"] == "slow"]
    assert told["after_pct"] == 90 and told["points"] > 60


def test_what_cannot_be_read_is_told(store):
    path, shelf = store
    shelf.add([row(60, "f"), row(30, "f")._replace(body=b"nonsense")])
    assert answer_of(Question("job-1", path)).source.endswith("1 window could not be read")


def test_a_job_that_was_not_profiled_names_the_remedy(store):
    path, shelf = store
    with pytest.raises(CannotRun, match="this job was not profiled"):
        answer_of(Question("job-1", path, since="1h"))
    shelf.add([row(7200, "f")])
    with pytest.raises(TargetEnded, match="there is no profile of this time") as error:
        answer_of(Question("job-1", path, since="1h"))
    assert error.value.exit_code == 5


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ({"since": "yesterday"}, "--since"),
        ({"since": "1h", "until": "2h"}, "--since"),
        ({"against": "2h"}, "--against"),
        ({"against": "1h..2h"}, "--against"),
        ({"against_rank": 1}, "--against-rank"),
        ({"against_attempt": 1}, "--against-attempt"),
        ({"attempt": 3}, "--attempt"),
        ({"rank": 7}, "--rank"),
        ({"since": "9" * 400 + "h"}, "--since"),
    ],
)
def test_questions_that_make_no_sense_are_refused(store, question, field):
    path, shelf = store
    shelf.add([row(60, "f")])
    with pytest.raises(BadInput) as error:
        answer_of(Question("job-1", path, **question))
    assert error.value.field == field


def test_the_command_shows_the_past_and_what_changed(store):
    path, shelf = store
    shelf.add([row(7200 + k, "slow", 200) for k in range(0, 30, 10)])
    shelf.add([row(60 + k, "slow", 1800) for k in range(0, 30, 10)])
    done = unidle("profile", "job-1", "--since", "1h", "--store", path)
    assert done.returncode == 0, done.stderr
    assert "3 looks at rank 0 of attempt 1" in done.stdout
    told = json.loads(unidle("profile", "job-1", "--since", "1h", "--store", path, "--json").stdout)
    assert round(sum(told["budget"].values()), 6) == 100
    done = unidle("profile", "job-1", "--since", "1h", "--against", "3h..1h", "--store", path)
    assert done.returncode == 0 and "slow (train.py)" in done.stdout
    told = json.loads(
        unidle("profile", "job-1", "--since", "1h", "--against", "3h..1h", "--store", path, "--json").stdout
    )
    assert {"before", "after", "budget", "functions"} <= told.keys()
    done = unidle("profile", "job-1", "--since", "1h", "--store", path, "--format", "folded")
    assert done.returncode == 0 and "slow" in done.stdout
    assert unidle("profile", "job-1", "--since", "nonsense", "--store", path).returncode == 2
    assert unidle("profile", "job-1", "--until", "2d", "--store", path).returncode == 5
