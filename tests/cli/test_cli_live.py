"""The lines of unidle's own while a job runs."""

from __future__ import annotations

import pytest

from unidle.cli.live import Live
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.jobs import Reason
from view.telling import Telling


def seen(telling: Telling, live: Live, rank: int, *marks: Mark) -> None:
    count = telling.job("j").attempts[-1].ranks[rank].count
    event = ev.RankSaw("j", 1, rank, count, marks)
    telling.tell(event)
    live.tell(telling.view, event)


def test_frequent_checkpoints_are_one_line_and_then_part_of_the_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telling = Telling(2).at(100).submit("j").place("j", "n0/0").at(200)
    live = Live("plain")
    for n in range(1, 6):
        seen(telling, live, 0, Mark("step", n * 10**9, n=n), Mark("saved", n * 10**9 + 1, n=n))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].endswith("j: checkpoint saved at step 1")
    live._last = -1e9
    live.refresh(telling.job("j"), 10**10)
    assert "| checkpoint 5 |" in capsys.readouterr().err


def test_ranks_that_the_gang_took_along_have_no_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    telling = Telling(3).at(100).submit("j", ranks=3).place("j", "n0/0", "n0/1", "n0/2").at(200)
    live = Live("plain")
    rank = telling.job("j").attempts[-1].ranks[2]
    rank.spawn_ns, rank.pid = None, None
    seen(telling, live, 0, Mark("exit", 1, code=-9))
    telling.tell(ev.StopAsked("j", 1, "rank_failed", 10**9, Reason("rank_failed", "rank 0 failed")))
    seen(telling, live, 1, Mark("exit", 2, code=-15))
    seen(telling, live, 2, Mark("lost", 3, text="stopped before it was started"))
    assert [line.split("s  ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "j: rank 0 was killed by SIGKILL"
    ]


def test_a_rank_that_is_lost_while_it_runs_has_a_line_also_when_its_gang_is_stopped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telling = Telling(3).at(100).submit("j", ranks=2).place("j", "n0/0", "n0/1").at(200)
    live = Live("plain")
    telling.tell(ev.StopAsked("j", 1, "cancelled", 10**9, Reason("cancelled", "cancelled by ann")))
    seen(telling, live, 0, Mark("lost", 2, text="its supervisor was killed"))
    assert "j: rank 0 was lost (its supervisor was killed)" in capsys.readouterr().err
