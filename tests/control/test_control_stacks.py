"""The look at a gang that hangs, from the controller's side: bounded in time and bytes, and never without an answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from unidle.control.gangs.local_stacks import LIMIT_NS, LocalStacks
from unidle.control.gangs.stacks import (
    AT_ONCE,
    KEPT_BYTES,
    LOOKS_PER_ATTEMPT,
    GangStacks,
    found,
)
from unidle.control.queries.describe import explain, job_detail
from unidle.engine.local.ranks import process_tree
from unidle.events import types as ev
from unidle.guard.lifecycle import decide
from unidle.jobs import Reason, Restart
from unidle.scope.stack_process import READY_NS, stacks_in
from view.telling import Telling
from waiting import wait_until

S = 1_000_000_000
WAITS = ev.RankStack((0, 2), "collective", "in all_reduce at t.py:4 (main)", ("main (t.py:4)",))
READS = ev.RankStack(
    (1,), "data", "at d.py:2 (load), waits in read pipe", ("load (d.py:2)", "waits in read pipe")
)


@pytest.fixture
def telling() -> Telling:
    telling = Telling(3).at(100).submit("job", ranks=3, restart=Restart(max=1))
    return telling.place("job", "n0/0", "n0/1", "n0/2").at(200)


def looker(program: str) -> GangStacks:
    return GangStacks(LocalStacks(Path("/nowhere"), (sys.executable, "-c", program)))


def taken(looks: GangStacks, now_ns: int) -> Iterator[ev.StacksTaken]:
    yield from wait_until(lambda: list(looks.take(now_ns)), what="the look's end")


def test_the_answer_of_the_last_whole_line_counts() -> None:
    first = msgspec.json.encode([ev.RankStack((0, 1, 2), "waiting", why_not="late")])
    second = msgspec.json.encode([WAITS, READS])
    event = found("job", 1, 3, stacks_in(first + b"\n" + second + b"\n"), "")
    assert event.odd == (1,)
    assert event.because.text.startswith("ranks 0 and 2 in all_reduce at t.py:4 (main); rank 1 at d.py:2")
    torn = found("job", 1, 3, stacks_in(first + b"\n" + second[:-9]), "the snapshot did not end in time")
    assert (torn.odd, torn.stacks[0].state) == ((), "waiting")
    assert "no Python lines: late" in torn.because.text


@pytest.mark.parametrize("out", [b"", b"no json\n", b'[{"ranks": "x"}]\n', b"[]\n"])
def test_without_an_answer_the_event_gives_the_reason(out: bytes) -> None:
    event = found("job", 1, 3, stacks_in(out), "it was too late")
    assert event.stacks == ()
    assert event.because.text.endswith("could not be taken: it was too late")


def test_ranks_that_the_look_did_not_name_are_unknown() -> None:
    event = found("job", 1, 4, [WAITS], "")
    assert event.stacks[-1] == ev.RankStack((1, 3), "unknown", why_not="it was not found")
    assert event.odd == ()


def test_a_huge_gang_stays_within_its_bytes_and_keeps_the_rare_places() -> None:
    many = [ev.RankStack((k,), "compute", f"at {k}", ("x" * 150,) * 24) for k in range(2000)]
    event = found("job", 1, 2000, many, "")
    assert sum(len(msgspec.json.encode(one)) for one in event.stacks if one.frames) <= KEPT_BYTES
    assert len(event.stacks) == 2000 and len(event.because.text) <= 2000


def test_a_look_that_does_not_end_is_over_after_a_second_and_leaves_no_process(telling: Telling) -> None:
    attempt = telling.view.jobs["job"].attempts[0]
    with closing(looker("import time; time.sleep(600)")) as looks:
        looks.begin("job", attempt, 5 * S)
        assert list(looks.take(5 * S + LIMIT_NS)) == [], "nothing waits for it"
        assert looks.holds("job", attempt, 5 * S)
        assert list(looks.take(5 * S + LIMIT_NS - 1)) == []
        [event] = looks.take(5 * S + LIMIT_NS)
        assert "did not end in time" in event.because.text
        assert not looks.pending
        assert not looks.holds("job", attempt, 7 * S), "a gang is stopped, whatever became of the look"


def test_a_look_that_cannot_be_started_gives_the_reason(telling: Telling) -> None:
    with closing(GangStacks(LocalStacks(Path("/nowhere"), ("/nowhere/python",)))) as looks:
        looks.begin("job", telling.view.jobs["job"].attempts[0], S)
        [event] = looks.take(S)
        assert "could not be started: No such file or directory" in event.because.text


def test_a_look_that_ends_with_an_error_does_not_hold_up_the_stop(telling: Telling) -> None:
    with closing(looker("raise SystemExit(3)")) as looks:
        looks.begin("job", telling.view.jobs["job"].attempts[0], S)
        [event] = taken(looks, S)
        assert event.because.text.endswith("the snapshot ended without a result")


def test_a_process_that_is_ready_is_used_once_and_ended_where_nobody_needs_it(
    telling: Telling, tmp_path: Path
) -> None:
    attempt = telling.view.jobs["job"].attempts[0]
    program = "import os, sys; open(f'{os.getpid()}', 'w'); os._exit(9 if sys.stdin.read() else 0)"
    with closing(
        GangStacks(
            LocalStacks(
                tmp_path, (sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {program}")
            )
        )
    ) as looks:
        looks.prepare(attempt, S)
        looks.prepare(attempt, 2 * S)
        assert not looks.pending
        wait_until(lambda: len(list(tmp_path.iterdir())) == 1)
        looks.begin("job", telling.view.jobs["job"].attempts[0], 2 * S)
        list(taken(looks, 2 * S))
        assert len(list(tmp_path.iterdir())) == 1
        looks.prepare(attempt, 3 * S)
        [pid] = [int(p.name) for p in wait_until(lambda: list(tmp_path.iterdir()) if len(list(tmp_path.iterdir())) == 2 else [])
                 if process_tree.is_live(int(p.name))]  # fmt: skip
        assert list(looks.take(3 * S + READY_NS)) == [] and process_tree.is_live(pid)
        assert list(looks.take(3 * S + READY_NS + 1)) == []
        wait_until(lambda: not process_tree.is_live(pid))


def test_few_are_looked_at_at_once_and_each_only_so_often(telling: Telling) -> None:
    attempt = telling.view.jobs["job"].attempts[0]
    with closing(looker("import time; time.sleep(600)")) as looks:
        for k in range(AT_ONCE + 1):
            looks.begin(f"job{k}", attempt, S)
        [event] = looks.take(S)
        assert (event.job, "too many other gangs" in event.because.text) == (f"job{AT_ONCE}", True)
    with closing(GangStacks(LocalStacks(Path("/nowhere"), ("/nowhere/python",)))) as looks:
        for _ in range(LOOKS_PER_ATTEMPT + 3):
            looks.begin("job", attempt, S)
            list(looks.take(S))
        looks.begin("job", attempt, S)
        assert not looks.pending


def test_the_stop_of_a_hung_gang_names_the_rank_that_only_the_stacks_show(telling: Telling) -> None:
    telling.tell(
        ev.VerdictReached("job", 1, "hang", 190 * S, 195 * S, True, Reason("hang", "all wait alike"))
    )
    [plain] = decide(telling.view.jobs["job"], 200 * S)
    assert isinstance(plain, ev.StopAsked) and (plain.because.text, plain.culprit) == ("all wait alike", None)
    telling.tell(found("job", 1, 3, [WAITS, READS], ""))
    [stop] = decide(telling.view.jobs["job"], 200 * S)
    assert isinstance(stop, ev.StopAsked) and (stop.why, stop.culprit) == ("hung", 1)
    assert stop.because.text == "all wait alike; rank 1 at d.py:2 (load), waits in read pipe"


def test_explain_and_show_have_the_stacks_by_rank(telling: Telling) -> None:
    job = telling.view.jobs["job"]
    assert explain(telling.view, job)["stacks"] == explain(telling.view, job)["odd_ranks"] == []
    telling.tell(found("job", 1, 3, [WAITS, READS], ""))
    story = explain(telling.view, job)
    assert [(row["rank"], row["state"], row["frames"]) for row in story["stacks"]] == [
        (0, "collective", ["main (t.py:4)"]),
        (1, "data", ["load (d.py:2)", "waits in read pipe"]),
        (2, "collective", ["main (t.py:4)"]),
    ]
    assert story["odd_ranks"] == [1]
    assert "stacks" in [decision["what"] for decision in story["decisions"]]
    [run] = job_detail(telling.view, job)["runs"]
    assert (run["stacks"], run["odd_ranks"]) == (story["stacks"], [1])
