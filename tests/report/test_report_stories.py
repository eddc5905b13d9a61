"""The story of a job: what it printed last, how fast it was, what it ran, and where it went wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unidle.api.rank_output import LocalOutput
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.jobs import Reason, Restart
from unidle.report.plot import Scale, figure, plots
from unidle.report.rank_output import UnknownOutput
from unidle.report.stories import LINE_CHARS, TAIL_LINES, _interpolated, _revision, output_tail, story_of
from view.telling import Telling

S = 1_000_000_000
JOB = Telling(2).at(100).submit("j", ranks=2).view.jobs["j"]


def write_log(runs: Path, data: bytes, rank: int = 0, job: str = "j", attempt: int = 1) -> None:
    place = runs / job / str(attempt) / f"rank{rank}"
    place.mkdir(parents=True)
    (place / "log").write_bytes(data)


def tail(runs: Path, data: bytes) -> tuple[str, ...]:
    write_log(runs, data)
    return output_tail(LocalOutput(runs), JOB, 1, 0)[0]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m\n", ("red",)),
        (b" 10%|#| 1/10\r 20%|##| 2/10\r 30%|###| 3/10\r\n", (" 30%|###| 3/10",)),
        (b"a\r\nb\r\n", ("a", "b")),
        (b"\x1b]8;;http://evil/\x07link\x1b]8;;\x07 \x1b]0;title\x1b\\end\n", ("link end",)),
        (b"\xff\xfe\x00bin\x07ary\n", ("\ufffd\ufffd\ufffdbin\ufffdary",)),
        (b"no newline at the end", ("no newline at the end",)),
        (b"\n \n\n", ()),
    ],
)
def test_the_last_lines_are_shown_as_a_terminal_would_leave_them(
    tmp_path: Path, printed: bytes, shown: tuple[str, ...]
) -> None:
    assert tail(tmp_path, printed) == shown


def test_a_long_log_costs_its_end_only_and_a_long_line_is_cut(tmp_path: Path) -> None:
    lines = tail(
        tmp_path,
        b"x" * 5_000_000 + b"\n" + b"y" * 5000 + b"\n" + b"".join(b"%d\n" % k for k in range(TAIL_LINES - 1)),
    )
    assert len(lines) == TAIL_LINES
    assert len(lines[0]) == LINE_CHARS and lines[0].endswith("\u2026")
    assert lines[-1] == str(TAIL_LINES - 2)


def test_where_there_are_no_lines_the_reason_is_given(tmp_path: Path) -> None:
    assert output_tail(UnknownOutput(), JOB, 1, 0) == ((), "the output of its ranks is on another machine")
    here = LocalOutput(tmp_path)
    assert output_tail(here, JOB, 1, 0)[1] == "the output of rank 0 cannot be read: No such file or directory"
    write_log(tmp_path, b"")
    assert output_tail(here, JOB, 1, 0) == ((), "rank 0 printed nothing")


def test_a_failed_attempt_has_the_lines_of_the_rank_that_failed_without_its_secrets(tmp_path: Path) -> None:
    telling = Telling(2).at(100).submit("j", ranks=2, env={"API_KEY": "hunter22"}, restart=Restart(max=1))
    telling.place("j", "n0/0", "n0/1").at(110)
    write_log(tmp_path, b"logged in with hunter22\nValueError: no\n", rank=1)
    telling.mark("j", 1, "exit", code=1)
    telling.tell(ev.StopAsked("j", 1, "rank_failed", 0, Reason("rank_failed", "rank 1 exited 1"), 1))
    telling.tell(ev.AttemptEnded("j", 1, "failed", Reason("rank_failed", "rank 1 exited 1 (hunter22)")))
    story = story_of(telling.view.jobs["j"], LocalOutput(tmp_path), 120 * S, "my store.db")
    assert story.problem is not None
    assert (story.problem.headline, story.problem.rank) == ("rank 1 exited 1", 1)
    assert story.problem.next == "unidle logs j --rank 1 --store 'my store.db'"
    assert story.problem.lines == ("logged in with (hidden)", "ValueError: no")
    assert story.env == (("API_KEY", "(hidden)"),)
    assert "hunter22" not in repr(story)


def test_the_problem_names_who_fell_what_the_code_means_and_why_there_was_no_other_attempt(
    tmp_path: Path,
) -> None:
    telling = Telling(2).at(100).submit("j", ranks=2).place("j", "n0/0", "n0/1").at(110)
    telling.mark("j", 1, "exit", code=-11).at(111).mark("j", 0, "exit", code=-15)
    telling.tell(ev.AttemptEnded("j", 1, "failed", Reason("rank_failed", "rank 1 was killed")))
    telling.tell(ev.JobEnded("j", "failed", Reason("rank_failed", "rank 1 was killed; 1 of 1 restart used")))
    problem = story_of(telling.view.jobs["j"], LocalOutput(tmp_path), 120 * S).problem
    assert problem is not None and problem.note.endswith(
        "; SIGSEGV: it used memory that is not its own; rank 0 failed because of it; 1 of 1 restart used"
    )


def test_a_job_that_never_failed_has_no_problem_and_one_that_never_ran_has_its_reason(tmp_path: Path) -> None:
    telling = Telling(2).at(100).submit("j").submit("k")
    assert story_of(telling.view.jobs["j"], LocalOutput(tmp_path), 120 * S).problem is None
    telling.tell(ev.JobEnded("k", "failed", Reason("queue_timeout", "waited too long")))
    problem = story_of(telling.view.jobs["k"], LocalOutput(tmp_path), 120 * S).problem
    assert problem is not None and (problem.headline, problem.note) == ("waited too long", "it never ran")


def run_of(*steps: tuple[float, int, float | str | None]) -> Telling:
    telling = Telling(2).at(100).submit("j").place("j", "n0/0").at(200)
    marks = tuple(
        Mark(
            "step",
            int((100 + at) * S),
            n,
            v=loss if isinstance(loss, float) else None,
            text=loss if isinstance(loss, str) else None,
        )
        for at, n, loss in steps
    )
    known = telling.view.jobs["j"].attempts[0].ranks[0].count
    return telling.tell(ev.RankSaw("j", 1, 0, known, marks))


def test_speed_is_steps_over_time_and_shows_a_pause() -> None:
    steps = [(k * 0.1, k, None) for k in range(1, 201)] + [
        (30 + k * 0.1, 200 + k, None) for k in range(1, 101)
    ]
    [curve] = story_of(run_of(*steps).view.jobs["j"], UnknownOutput(), 200 * S).speed
    values = [value for _, value in curve.points if value is not None]
    assert max(values) == pytest.approx(10, rel=0.02)
    assert min(values) < 0.5, "ten seconds without a step"
    area = sum(
        (b[0] - a[0]) / 1e9 * (a[1] or 0) for a, b in zip(curve.points, curve.points[1:], strict=False)
    )
    assert area == pytest.approx(299, rel=0.02), "the curve's area is the number of steps"


@pytest.mark.parametrize("steps", [[], [(1.0, 1, None)], [(1.0, 1, None), (1.0, 2, None), (1.0, 3, None)]])
def test_too_few_steps_have_no_speed(steps: list[tuple[float, int, None]]) -> None:
    assert story_of(run_of(*steps).view.jobs["j"], UnknownOutput(), 200 * S).speed == ()


def test_loss_is_kept_with_its_time_and_no_finite_number_is_a_gap() -> None:
    story = story_of(
        run_of((1, 1, 2.5), (2, 2, 1.5), (3, 3, "loss nan"), (4, 4, "something else")).view.jobs["j"],
        UnknownOutput(),
        200 * S,
    )
    assert [(t // S - 100, value) for t, value in story.loss[0].points] == [(1, 2.5), (2, 1.5), (3, None)]
    drawn = plots(story, (), 0)
    assert "no finite number from" in drawn and drawn.count("<polyline") == 1 + len(story.speed)


def test_a_long_run_keeps_its_first_and_last_loss_and_few_between() -> None:
    telling = run_of(*((k / 100, k, float(k)) for k in range(1, 5001)))
    rank = telling.view.jobs["j"].attempts[0].ranks[0]
    assert len(rank.losses) <= 512
    assert (rank.losses[0][1], rank.losses[-1][1]) == (1, 5000)
    points = story_of(telling.view.jobs["j"], UnknownOutput(), 200 * S).loss[0].points
    assert len(points) < 400 and points[-1][1] == 5000.0


def test_scales_put_the_values_inside_the_picture() -> None:
    assert Scale(0, 10).y(0) == 100 and Scale(0, 10).y(10) == 0
    assert Scale(0.01, 100, log=True).y(1) == 50
    assert Scale(3, 3).y(3) == 50
    assert _interpolated([0, 10, 10, 20], [0, 1, 2, 4], [0, 5, 10, 15, 20]) == [0, 0.5, 1, 3, 4]
    assert [figure(v) for v in (0, 0.012345, 12.345, 1234.5, 1.2e7, -3.0, 2.5e-6)] == [
        "0", "0.0123", "12.3", "1,234", "1.2e+07", "-3", "2.5e-06",
    ]  # fmt: skip


def test_the_revision_of_the_directory_is_read_without_git(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    assert _revision(tmp_path / "src") == ""
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/main\n")
    assert _revision(tmp_path / "src") == f"git {'a' * 12} (main) when this page was made"
    (git / "refs/heads/main").write_text("b" * 40)
    assert _revision(tmp_path) == f"git {'b' * 12} (main) when this page was made"
    (git / "HEAD").write_text("garbage")
    assert _revision(tmp_path) == ""


def test_a_revision_that_leads_elsewhere_or_is_a_fifo_is_not_read(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    secret = tmp_path / "secret"
    secret.write_text("c" * 40)
    for told in (f"ref: {secret}", "ref: refs/../../secret"):
        (git / "HEAD").write_text(told)
        assert _revision(tmp_path) == ""
    (git / "HEAD").unlink()
    (git / "HEAD").symlink_to(secret)
    assert _revision(tmp_path) == ""
    (git / "HEAD").unlink()
    os.mkfifo(git / "HEAD")
    assert _revision(tmp_path) == ""  # a plain open would wait for a writer
