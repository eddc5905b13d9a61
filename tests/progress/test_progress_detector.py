"""Steps that nobody named: real shapes of output with known steps, and output that has none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from progress.feeding import SECOND, cut, marks_of, sources, steps
from progress.outputs import others, trainings
from unidle.engine.local.ranks.supervisor.progress import RankProgress, Scanner, validate_pattern
from unidle.engine.local.ranks.supervisor.progress.scanner import read_output

TRAININGS = trainings()
OTHERS = others()
# bars, tables and headings that begin their lines
_BY_LINE_START = (
    "keras", "keras_3", "keras_one_line_for_an_epoch", "boosting", "fast_ai_table", "csv_with_a_head", "epochs_only",
    "bracketed_batches_under_headings", "numbers_of_a_solver", "molecular_dynamics", "boosting_table", "steps_under_headings_with_a_validation", "two_counts_in_a_line",
)  # fmt: skip


@pytest.mark.parametrize("name", TRAININGS)
def test_each_line_that_trains_is_a_step(name: str) -> None:
    marks, first, last, text = TRAININGS[name]
    found = read_output([text.encode()])
    assert (found.marks, found.first, found.last) == (marks, first, last)
    assert found.form and 0.5 <= found.confidence <= 1


@pytest.mark.parametrize(
    "name", [name for name in TRAININGS if name != "a_shorter_loop_between_that_prints_alike"]
)
def test_the_proposed_pattern_reads_the_same_lines(name: str) -> None:
    marks, first, last, text = TRAININGS[name]
    pattern = read_output([text.encode()]).pattern
    assert pattern is not None and validate_pattern(pattern) is None
    again = read_output([text.encode()], pattern)
    assert (again.marks, again.first, again.last, again.form) == (marks, first, last, "pattern")


@pytest.mark.parametrize("name", OTHERS)
def test_what_trains_nothing_has_no_step(name: str) -> None:
    found = read_output([OTHERS[name].encode()])
    assert (found.marks, found.first, found.last, found.form, found.confidence) == (0, None, None, None, 0.0)


@pytest.mark.parametrize("name", OTHERS)
def test_what_trains_nothing_does_not_hide_what_trains_after_it(name: str) -> None:
    marks, first, last, text = TRAININGS["step_and_loss"]
    found = read_output([OTHERS[name].encode(), text.encode()])
    assert (found.marks, found.first, found.last) == (marks, first, last)


@pytest.mark.parametrize(
    "name", [name for name in TRAININGS if "\r" not in TRAININGS[name][3] and name not in _BY_LINE_START]
)
def test_a_time_and_a_level_before_each_line_change_nothing(name: str) -> None:
    marks, first, last, text = TRAININGS[name]
    lines = [
        f"2026-03-01 12:{k // 60 % 60:02}:{k % 60:02},{k % 1000:03} - root - INFO - {line}\n"
        for k, line in enumerate(text.splitlines())
    ]
    found = read_output(["".join(lines).encode()])
    assert (found.marks, found.first, found.last) == (marks, first, last)


@pytest.mark.parametrize("name", ["epoch_and_step", "json_lines", "keras", "mmcv", "numbers_of_a_solver"])
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), most=st.sampled_from([7, 100, 5000]))
def test_chunks_cut_anywhere_give_what_the_file_gives(name: str, seed: int, most: int) -> None:
    marks, first, last, text = TRAININGS[name]
    scanner, t_ns = Scanner(), 0
    for chunk in cut(text.encode(), seed, most):
        t_ns += SECOND
        scanner.feed("stdout", chunk, t_ns)
    scanner.flush(t_ns)
    assert (scanner.lines, scanner.first_step, scanner.last_step) == (marks, first, last)


def test_lines_that_came_before_it_was_sure_are_steps_at_their_own_times() -> None:
    text = "".join(f"{n * 10} {1 / n:.4f} {2 / n:.4f}\n" for n in range(1, 21))
    marks = [mark for mark in marks_of(text) if mark["k"] == "step"]
    assert [(mark["n"], mark["t"]) for mark in marks] == [(10 * n, n * SECOND) for n in range(1, 21)]
    assert sources(marks) == {"lines"}


def test_a_flood_that_is_read_late_is_thinned_like_any_other() -> None:
    scanner = Scanner()
    data = "".join(f"round {n}: {1 / (n + 1):.3f}\n" for n in range(3)).encode()
    assert steps(scanner.feed("stdout", data, SECOND)) == []
    marks = scanner.feed("stdout", b"".join(b"round %d: 0.5\n" % n for n in range(3, 5000)), SECOND + 1)
    marks += scanner.flush(2 * SECOND)
    assert len(steps(marks)) <= 4
    assert (steps(marks)[-1], scanner.lines) == (4999, 5000)


def test_one_line_alone_is_no_step_without_a_step_and_a_loss() -> None:
    for line in (
        "step 5 of 9\n",
        "Epoch 1/3\n",
        "resumed from step 5, loss 0.3\n",
        "best epoch 3: loss 0.2\n",
        "[10/100] loss 2.0\n",
        "100\n",
    ):
        assert steps(marks_of("hello\n" + line)) == []


def test_iterations_follow_epochs_that_were_counted_before_them() -> None:
    text = "Epoch 1/9 loss 0.9\nEpoch 2/9 loss 0.8\n" + "".join(
        f"iteration {n} loss 0.5\n" for n in range(100, 110)
    )
    assert steps(marks_of(text)) == [1, 2, *range(100, 110)]


def test_a_framework_that_prints_later_takes_precedence_over_lines_that_were_guessed() -> None:
    text = "".join(f"{n} {1 / n:.4f} 2.5\n" for n in range(1, 11))
    text += "".join(f"iter {n}: loss 2.5, time 1.00ms\n" for n in range(3))
    marks = marks_of(text)
    assert steps(marks) == [*range(1, 11), 11, 12, 13]
    assert [mark["o"] for mark in marks] == ["lines"] * 10 + ["nanogpt"] * 3


def test_a_bar_over_batches_counts_and_not_the_lines_of_epochs_between() -> None:
    bar = "epoch {}:  1%|  | {}/10 [00:01<00:09, 9.9it/s]\n"
    text = "".join(
        "".join(bar.format(e, n) for n in range(11)) + f"epoch {e} train loss 0.{e} val loss 0.{e}\n"
        for e in (1, 2, 3)
    )
    assert steps(marks_of(text)) == list(range(1, 31))


def test_lines_of_iterations_count_and_not_the_bar_over_epochs() -> None:
    bar = "  1%|  | {}/3 [00:01<00:09, 9.90s/it]\n"
    text = bar.format(0)
    for epoch in range(3):
        text += "".join(f"iteration {epoch * 50 + n} loss 0.5\n" for n in range(0, 50, 5))
        text += bar.format(epoch + 1)
    found = read_output([text.encode()])
    assert (found.last, found.form) == (145, "lines")


def test_evaluations_between_are_passed_over() -> None:
    text = ""
    for n in range(10, 60, 10):
        text += f"step {n} loss 0.5\n" + "".join(
            f"eval step {k} loss 0.4\n[eval] step {k} acc 0.9\n" for k in range(3)
        )
    assert steps(marks_of(text)) == [10, 20, 30, 40, 50]


def test_each_rank_of_a_launcher_has_lines_of_its_own_and_one_counts() -> None:
    text = ""
    for n in range(20):
        order = (0, 1, 2) if n % 2 else (2, 0, 1)
        text += "".join(f"[rank{k}]: step {n + (k == 2)} loss 0.5\n" for k in order)
    found = read_output([text.encode()])
    assert found.marks in (20, 21) and found.marks == found.last - found.first + 1


def test_epochs_that_were_trained_before_a_restart_count() -> None:
    lines = [f"Train Epoch: 3 [{n}/6000 ({n // 60}%)]\tLoss: 0.3\n" for n in (0, 640)]
    assert steps(marks_of("".join(lines))) == [12000, 12640]


def test_a_step_that_starts_again_under_a_new_epoch_grows_on() -> None:
    text = "".join(f"epoch {e} step {n} loss 0.1\n" for e in range(3) for n in (2, 4, 6))
    assert steps(marks_of(text)) == [2 * n for n in range(1, 10)]


def test_a_step_over_all_epochs_is_not_folded() -> None:
    text = "".join(f"epoch {k // 5} step {k} loss 0.1\n" for k in range(15))
    assert steps(marks_of(text)) == list(range(15))


def test_an_own_pattern_reads_epochs_and_their_length() -> None:
    text = "".join(f"<{e};{n};100>\n" for e in (1, 2, 3) for n in (40, 80))
    pattern = r"<(?P<epoch>\d+);(?P<step>\d+);(?P<total>\d+)>"
    assert steps(marks_of(text, pattern)) == [40, 80, 140, 180, 240, 280]


def test_steps_behind_much_other_output_are_found() -> None:
    noise = "".join(
        f"2026-01-01 12:00:00,123 INFO fetched {n * 37 % 101} items in 0.1 s\n" for n in range(30_000)
    )
    marks, first, last, text = TRAININGS["step_and_loss"]
    found = read_output([noise.encode(), text.encode()])
    assert (found.marks, found.first, found.last) == (marks, first, last)


@pytest.mark.parametrize("size", [100, 5000, 262_144])
def test_what_lines_pass_does_not_depend_on_how_they_are_read(size: int) -> None:
    lines = [f"2026 worker a{n % 7} fetched {n * 37 % 101} of the lost steps\n\n" for n in range(20_000)]
    lines[9_000:9_000] = [f"t {n} : {1 / (n + 1):.4f}\n" for n in range(100_000)]
    data = "".join(lines).encode()
    scanner = Scanner()
    for start in range(0, len(data), size):
        scanner.feed("stdout", data[start : start + size], start)
    whole = Scanner()
    whole.feed("stdout", data, 1)
    assert (scanner.lines, scanner.first_step, scanner.last_step) == (
        whole.lines, whole.first_step, whole.last_step,
    )  # fmt: skip
    assert whole.last_step == 99_999


def test_what_the_search_keeps_is_bounded() -> None:
    scanner = Scanner()
    for k in range(3000):
        word = "".join(chr(97 + (k // 26**i) % 26) for i in range(4))
        scanner.feed("stdout", f"{word} step {k} of {word} {k * k} loss\n".encode(), k)
    detector = scanner._detector
    assert detector is not None
    assert len(detector._shapes) <= 512 and len(detector._fields) <= 256


def test_steps_that_were_guessed_can_be_compared_with_names_of_checkpoints_if_they_are_no_epochs() -> None:
    for text, comparable in (
        ("".join(f"step {n} loss 0.5\n" for n in range(5)), True),
        ("".join(f"epoch {n} loss 0.5\n" for n in range(5)), False),
        (TRAININGS["pytorch_mnist"][3], False),
    ):
        scanner = Scanner()
        scanner.feed("stdout", text.encode(), SECOND)
        assert scanner.numbers_are_steps is comparable


def test_the_helper_takes_precedence_over_guessed_lines() -> None:
    progress = RankProgress()
    progress.output("stdout", b"".join(b"step %d loss 0.5\n" % n for n in range(3)), SECOND)
    progress.helper(b'{"k": "step", "t": 1500000000, "n": 7}\n', 2 * SECOND)
    later = progress.output("stdout", b"step 9 loss 0.5\n", 3 * SECOND) + progress.finish(4 * SECOND)
    assert [mark["o"] for mark in later if mark["k"] == "step"] == []


@given(st.lists(st.binary(max_size=120), max_size=30))
def test_any_lines_end_to_end_are_read_without_an_exception(lines: list[bytes]) -> None:
    found = read_output([b"\n".join(lines * 3)])
    assert (found.marks == 0) == (found.form is None)


def test_a_form_that_was_found_after_a_cycle_is_read_from_then_on() -> None:
    """A dropped form of bare numbers neither counts nor is in the way of what names its steps."""
    cycle = "".join(f"value {k % 11 * 10}\n" for k in range(66))
    train = "".join(f"step {k} loss {9 / (k + 1):.3f}\n" for k in range(40))
    found = read_output([(cycle + train).encode()])
    assert (found.marks, found.last, found.confidence) == (40, 39, 0.9)


def test_bare_numbers_of_a_long_loop_still_count_where_it_begins_again() -> None:
    found = read_output(["".join(f"value {k % 100}\n" for k in range(300)).encode()])
    assert (found.marks, found.confidence) == (300, 0.5)
