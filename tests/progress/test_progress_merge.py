"""One rank's progress from its best source, and the pipe of ``unidle.rank``."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import needs
from fuse import StubbornMount, stubborn
from progress.feeding import SECOND, cut, steps
from unidle.engine.local.ranks.supervisor.progress import HelperPipe, RankProgress
from unidle.events.marks import Mark
from waiting import wait_until

OFFSET = 7 * SECOND


def record(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def at(seconds: float) -> int:
    """A time as the rank writes it, ``seconds`` on the controller's clock."""
    return int(seconds * SECOND) - OFFSET


# ---- the pipe


def test_records_become_marks_on_the_controllers_clock() -> None:
    pipe = HelperPipe(OFFSET)
    marks = pipe.feed(record(k="ready", t=at(8)), 9 * SECOND)
    marks += pipe.feed(record(k="span", t=at(10), e=at(11), w="data"), 20 * SECOND)
    marks += pipe.feed(record(k="step", t=at(12), n=4), 30 * SECOND)
    marks += pipe.feed(record(k="saved", t=at(13), n=4, text="ckpt/4"), 40 * SECOND)
    assert marks == [
        {"k": "ready", "t": 8 * SECOND, "o": "helper"},
        {"k": "span", "t": 10 * SECOND, "e": 11 * SECOND, "w": "data", "o": "helper"},
        {"k": "step", "t": 12 * SECOND, "n": 4, "o": "helper"},
        {"k": "saved", "t": 13 * SECOND, "o": "helper", "n": 4, "text": "ckpt/4"},
    ]
    for mark in marks:
        Mark(**mark)


def test_wait_that_never_ended_lasts_until_the_rank_did() -> None:
    pipe = HelperPipe(OFFSET)
    assert pipe.feed(record(k="begin", t=at(10), w="data"), 10 * SECOND) == []
    [span] = pipe.flush(60 * SECOND)
    assert (span["t"], span["e"], span["w"]) == (10 * SECOND, 60 * SECOND, "data")


def test_times_never_lie_ahead_of_when_they_were_read() -> None:
    pipe = HelperPipe(OFFSET)
    [mark] = pipe.feed(record(k="step", t=at(1000), n=1), 9 * SECOND)
    assert mark["t"] == 9 * SECOND


@pytest.mark.parametrize(
    "garbage",
    [b"hello\n", b"{}\n", b"[1]\n", b'{"k":"step"}\n', record(k="step", t=-1, n=1), record(k="step", t=1, n="1"),
     record(k="step", t=1, n=True), record(k="step", t=1, n=2**70), record(k="span", t=1, e=2, w="lunch"),
     record(k="span", t=1, e=None, w="data"), record(k="begin", t=1, w=["data"]), record(k="dance", t=1),
     b"\xff\xfe\n", b"[" * 3000 + b"\n", b'{"k":"step","t":1,"n":1' + b" " * 5000 + b"}\n", b"x" * 10_000],
)  # fmt: skip
def test_garbage_is_counted_and_otherwise_ignored(garbage: bytes) -> None:
    pipe = HelperPipe()
    marks = pipe.feed(garbage, SECOND)
    assert marks == []
    assert pipe.garbage == 1
    pipe.feed(b"\n", SECOND)
    assert steps(pipe.feed(record(k="step", t=5, n=3), SECOND)) == [3]


@given(st.binary(max_size=2000), st.integers(0, 1000))
def test_any_bytes_in_the_pipe_are_survived(data: bytes, seed: int) -> None:
    pipe = HelperPipe()
    marks = [mark for chunk in cut(data, seed) for mark in pipe.feed(chunk, SECOND)]
    marks += pipe.flush(2 * SECOND)
    assert all(mark["k"] in ("step", "span", "saved", "ready", "note") for mark in marks)


def test_flood_of_short_waits_keeps_its_sum() -> None:
    pipe, marks, data = HelperPipe(OFFSET), [], b""
    for k in range(10_000):  # 10 s of steps of 1 ms, of which 0.3 ms are waits
        start = at(10) + k * 1_000_000
        data = record(k="span", t=start, e=start + 300_000, w="data") + record(
            k="step", t=start + 900_000, n=k
        )
        marks += pipe.feed(data, 10 * SECOND + (k + 1) * 1_000_000)
    marks += pipe.flush(21 * SECOND)
    spans = [mark for mark in marks if mark["k"] == "span"]
    assert sum(span["e"] - span["t"] for span in spans) == 10_000 * 300_000
    assert all(one["e"] <= other["t"] for one, other in itertools.pairwise(spans))
    assert len(marks) <= 2 * 10 * 20 + 4
    assert steps(marks)[-1] == 9_999


# ---- which source is believed


def test_printed_steps_end_where_the_helper_begins_to_count() -> None:
    progress = RankProgress(clock_offset_ns=OFFSET)
    marks = progress.output("stdout", b"iter 5: loss 1.0\n", 20 * SECOND)
    marks += progress.helper(record(k="step", t=at(21), n=6), 21 * SECOND)
    marks += progress.output("stdout", b"iter 6: loss 1.0\niter 7: loss 1.0\n", 22 * SECOND)
    marks += progress.helper(record(k="step", t=at(23), n=7), 23 * SECOND)
    assert [(mark["n"], mark["o"]) for mark in marks] == [(5, "nanogpt"), (6, "helper"), (7, "helper")]


def test_helper_that_counts_calls_goes_on_from_what_was_printed() -> None:
    progress = RankProgress(clock_offset_ns=OFFSET)
    marks = progress.output("stdout", b"iter 500: loss 1.0\n", 20 * SECOND)
    for k in (1, 2, 3):
        marks += progress.helper(record(k="step", t=at(20 + k), n=k, c=1), (20 + k) * SECOND)
    assert steps(marks) == [500, 501, 502, 503]


def test_spans_that_are_printed_count_until_the_helper_tells_its_own() -> None:
    progress = RankProgress(clock_offset_ns=OFFSET)
    evaluation = b"{'eval_loss': 1.0, 'eval_runtime': 0.5, 'epoch': 1.0}\n"
    assert len(progress.output("stdout", evaluation, 20 * SECOND)) == 1
    progress.helper(record(k="step", t=at(21), n=6), 21 * SECOND)
    assert len(progress.output("stdout", evaluation, 22 * SECOND)) == 1
    progress.helper(record(k="span", t=at(23), e=at(24), w="eval"), 25 * SECOND)
    assert progress.output("stdout", evaluation, 26 * SECOND) == []


class Rank:
    """Progress with a checkpoint directory, on the real clock."""

    def __init__(self, place: Path, pattern: str | None = None) -> None:
        self.offset_ns = 3 * SECOND
        self.progress = RankProgress(pattern, str(place), self.offset_ns)
        self.later_ns = 0

    def now_ns(self) -> int:
        self.later_ns += 2 * SECOND  # ticks come two seconds apart
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self.offset_ns + self.later_ns

    def saved(self) -> list[int | None]:
        marks = [mark for _ in range(3) for mark in self.progress.tick(self.now_ns())]
        return [mark.get("n") for mark in marks if mark["k"] == "saved"]


def test_checkpoints_of_an_unmodified_script_are_seen_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "step_1.bin").write_bytes(b"of an earlier attempt")
    rank = Rank(tmp_path)
    rank.progress.output("stdout", b"iter 7: loss 1.0\n", rank.now_ns())
    assert rank.saved() == []
    (tmp_path / "step_7.bin").write_bytes(b"state")
    assert rank.saved() == [7]
    assert rank.progress.finish(rank.now_ns()) == []


def test_step_in_a_name_is_left_out_where_steps_are_counted_otherwise(tmp_path: Path) -> None:
    rank = Rank(tmp_path, pattern="^done$")
    rank.progress.output("stdout", b"done\n", rank.now_ns())
    (tmp_path / "step_700.bin").write_bytes(b"state")
    assert rank.saved() == [None]


def test_checkpoint_that_the_helper_tells_is_not_told_again(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    now_ns = rank.now_ns()
    marks = rank.progress.helper(record(k="saved", t=now_ns - rank.offset_ns, n=7), now_ns)
    assert [mark["n"] for mark in marks] == [7]
    (tmp_path / "step_7.bin").write_bytes(b"state")
    assert rank.saved() == []


def test_checkpoint_that_is_printed_and_seen_is_told_once(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    (tmp_path / "iter_0000007").mkdir()
    (tmp_path / "iter_0000007" / "model.bin").write_bytes(b"state")
    line = b"  successfully saved checkpoint from iteration       7 to /data/ckpt\n"
    assert [mark["n"] for mark in rank.progress.output("stdout", line, rank.now_ns())] == [7]
    assert rank.saved() == []


def test_bad_pattern_is_noted_and_the_built_in_ones_serve() -> None:
    progress = RankProgress("(")
    [note] = progress.tick(SECOND)
    assert note["k"] == "note"
    assert "not a regular expression" in note["text"]
    assert steps(progress.output("stdout", b"iter 7: loss 1.0\n", SECOND)) == [7]


def test_end_tells_what_was_held_back_and_what_went_wrong() -> None:
    progress = RankProgress(clock_offset_ns=OFFSET)
    progress.helper(record(k="dropped", t=at(10), n=12) + b"nonsense\n", 20 * SECOND)
    marks = progress.output("stdout", b"iter 7: loss 1.0\n", 21 * SECOND)
    marks += progress.output("stdout", b"iter 8: loss 1.0\niter 9: loss 1.0", 21 * SECOND + 1)
    marks += progress.finish(22 * SECOND)
    assert steps(marks) == [7, 9]
    assert [mark["text"] for mark in marks if mark["k"] == "note"] == [
        "records that unidle.rank dropped, as the pipe was full: 12",
        "lines on unidle.rank's pipe that are no records: 1",
    ]


@contextmanager
def stalled(far: Path) -> Iterator[tuple[StubbornMount, RankProgress, int]]:
    """A rank whose checkpoint directory does not answer the look that is out, and the time before that look."""
    with stubborn(far) as mount:
        progress = RankProgress(checkpoint_path=str(mount.place))
        now_ns = progress._now_ns()
        mount.stall()
        assert progress.tick(now_ns + SECOND) == []
        assert mount.held.is_set(), "a look at the directory is out"
        yield mount, progress, now_ns


@needs.root
def test_a_checkpoint_directory_that_does_not_answer_stops_nothing_else(tmp_path: Path) -> None:
    with stalled(tmp_path / "far") as (_, progress, now_ns):
        marks = progress.helper(record(k="step", t=now_ns + SECOND, n=4), now_ns + 2 * SECOND)
        marks += progress.tick(now_ns + 4 * SECOND) + progress.finish(now_ns + 30 * SECOND)
        assert [mark["n"] for mark in marks if mark["k"] == "step"] == [4]
        assert [mark["text"] for mark in marks if mark["k"] == "note"] == [
            "the checkpoint directory does not answer: what was saved last is not known"
        ]


@needs.root
def test_a_directory_that_answers_again_is_looked_at_again(tmp_path: Path) -> None:
    with stalled(tmp_path / "far") as (mount, progress, now_ns):
        mount.answer()
        wait_until(
            lambda: not (progress.tick(now_ns + 2 * SECOND) or progress._apart.out), 60, "the directory"
        )
        mount.stall()
        progress.tick(now_ns + 4 * SECOND)
        assert mount.held.is_set()
        mount.answer()
        assert progress.finish(now_ns + 30 * SECOND) == []
