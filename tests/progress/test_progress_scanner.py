"""The scanner as a reader of streams: chunks, floods, patterns of the job's own."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progress.feeding import SECOND, cut, marks_of, sources, steps
from progress.test_progress_formats import DEEPSPEED, LIGHTNING, MEGATRON, NANOGPT, TORCHTITAN, TRAINER
from unidle.engine.local.ranks.supervisor.progress import Scanner, validate_pattern

RECORDED = {
    "nanogpt": NANOGPT,
    "torchtitan": TORCHTITAN,
    "megatron": MEGATRON,
    "deepspeed": DEEPSPEED,
    "trainer": TRAINER,
    "lightning": LIGHTNING,
}


@pytest.mark.parametrize("name", RECORDED)
@given(seed=st.integers(0, 2**32), most=st.sampled_from([1, 3, 50, 4000]))
def test_chunks_cut_anywhere_change_no_step(name: str, seed: int, most: int) -> None:
    data = RECORDED[name].encode()
    scanner, marks, t_ns = Scanner(), [], 0
    for chunk in cut(data, seed, most):
        t_ns += SECOND
        marks += scanner.feed("stderr", chunk, t_ns)
    marks += scanner.flush(t_ns)
    whole = steps(marks_of(data))
    # what is read at one time is told at once, by its last step
    assert set(steps(marks)) <= set(whole)
    assert steps(marks)[-1] == whole[-1]
    assert most > 50 or steps(marks) == whole


@given(st.lists(st.binary(max_size=200), max_size=20), st.sampled_from([None, r"step (\d+)", r"\w+x"]))
def test_any_bytes_give_rising_steps_and_no_exception(chunks: list[bytes], pattern: str | None) -> None:
    scanner, marks = Scanner(pattern), []
    for t_ns, chunk in enumerate(chunks):
        marks += scanner.feed("stdout", chunk, t_ns * SECOND)
    marks += scanner.flush(len(chunks) * SECOND)
    found = steps(marks)
    assert found == sorted(set(found))


@pytest.mark.parametrize("pattern", [None, r"iter (\d+)"])
def test_first_step_of_a_burst_is_reported_with_its_last(pattern: str | None) -> None:
    scanner = Scanner(pattern)
    burst = b"".join(b"iter %d: loss 1.0\n" % k for k in range(3, 9))
    assert steps(scanner.feed("stdout", burst, SECOND)) == [3, 8]
    assert steps(scanner.feed("stdout", b"iter 9: loss 1.0\niter 10: loss 1.0\n", 2 * SECOND)) == [10]


def test_streams_are_cut_into_lines_each_for_itself() -> None:
    scanner = Scanner()
    marks = scanner.feed("stdout", b"iter 7: lo", SECOND)
    marks += scanner.feed("stderr", b"a warning\n", 2 * SECOND)
    marks += scanner.feed("stdout", b"ss 2.5, time 1.00ms\n", 3 * SECOND)
    assert [(mark["n"], mark["t"]) for mark in marks] == [(7, 3 * SECOND)]


def test_bar_counts_when_it_is_drawn_and_not_when_it_is_drawn_over() -> None:
    scanner = Scanner()
    scanner.feed("stderr", b"\r  0%|          | 0/9 [00:00<?, ?it/s]", SECOND)
    marks = scanner.feed("stderr", "\r 11%|█         | 1/9 [00:30<04:00, 30.0s/it]".encode(), 31 * SECOND)
    assert [(mark["n"], mark["t"]) for mark in marks] == [(1, 31 * SECOND)]
    assert scanner.feed("stderr", b"\n", 40 * SECOND) == []


def test_line_without_end_is_cut_and_what_follows_it_is_read() -> None:
    scanner = Scanner()
    marks = []
    for k in range(64):
        marks += scanner.feed("stdout", b"x" * 65536, k * SECOND)
    marks += scanner.feed("stdout", b" iter 3: loss 1.0\niter 4: loss 1.0\n", 100 * SECOND)
    assert steps(marks + scanner.flush(101 * SECOND)) == [4]


def test_last_line_counts_though_it_never_ended() -> None:
    scanner = Scanner()
    assert scanner.feed("stdout", b"iter 12: loss 1.5, time 5.0ms", SECOND) == []
    assert steps(scanner.flush(2 * SECOND)) == [12]


def test_flood_of_steps_is_thinned_and_its_last_step_kept() -> None:
    scanner, marks = Scanner(), []
    per_chunk, chunks = 100, 1000
    for k in range(chunks):  # 10 s of 10,000 steps a second
        lines = [f"iter {k * per_chunk + i}: loss 1.0, time 0.1ms\n" for i in range(per_chunk)]
        marks += scanner.feed("stdout", "".join(lines).encode(), k * SECOND // 100)
    marks += scanner.flush(10 * SECOND)
    assert len(marks) <= 10 * 20 + 2
    assert steps(marks)[-1] == per_chunk * chunks - 1


def test_step_that_was_held_back_is_told_at_the_next_tick() -> None:
    scanner = Scanner()
    assert steps(scanner.feed("stdout", b"iter 1: loss 1.0\n", SECOND)) == [1]
    assert scanner.feed("stdout", b"iter 2: loss 1.0\n", SECOND + 1_000_000) == []
    [mark] = scanner.tick(SECOND + 60_000_000)
    assert (mark["n"], mark["t"]) == (2, SECOND + 1_000_000)
    assert scanner.tick(SECOND + 200_000_000) == []


def test_end_of_a_flood_in_one_chunk_is_seen() -> None:
    data = b"".join(b"iter %d: loss 1.0, time 0.1ms\n" % n for n in range(100_000))
    scanner = Scanner()
    marks = scanner.feed("stdout", data, SECOND) + scanner.flush(2 * SECOND)
    assert steps(marks)[-1] == 99_999


# ---- which source counts


def test_first_framework_that_speaks_is_kept() -> None:
    marks = marks_of("iter 5: loss 1.0\n" + DEEPSPEED + "iter 6: loss 1.0\n")
    assert steps(marks) == [5, 6]
    assert sources(marks) == {"nanogpt"}


def test_framework_goes_before_a_bar() -> None:
    marks = marks_of(
        "  1%|  | 1/900 [00:01<00:09, 9.9it/s]\niter 5: loss 1.0\n  9%|  | 80/900 [00:08<00:09, 9.9it/s]\n"
    )
    assert steps(marks) == [1, 5]


def test_inner_bar_counts_and_not_the_bar_over_epochs() -> None:
    outer = "Epochs:  {}%|  | {}/3 [00:01<00:09, 9.9it/s]\n"
    inner = "batches:  1%|  | {}/50 [00:01<00:09, 9.9it/s]\n"
    text = outer.format(0, 0) + inner.format(0)
    for epoch in (1, 2, 3):
        text += inner.format(25) + inner.format(50) + outer.format(33 * epoch, epoch) + inner.format(0)
    assert steps(marks_of(text)) == [25, 50, 75, 100, 125, 150]


def test_plain_evaluation_bar_after_the_training_bar_does_not_count() -> None:
    bar = "  1%|  | {}/{} [00:01<00:09, 9.9it/s]\n"
    text = "".join(bar.format(n, 40) for n in (0, 10, 20, 30, 40)) + bar.format(0, 90) + bar.format(90, 90)
    assert steps(marks_of(text * 2)) == [10, 20, 30, 40, 50, 60, 70, 80]


def test_bar_that_outlasts_a_finished_one_takes_over() -> None:
    bar = "  1%|  | {}/{} [00:01<00:09, 9.9it/s]\n"
    text = bar.format(0, 99) + bar.format(99, 99) + "".join(bar.format(n, 40) for n in range(9))
    assert steps(marks_of(text)) == [99, *range(100, 107)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("Epoch 0", "Epoch 1"), [5, 10, 15, 20]),
        (("Epoch 1", "Epoch 2"), [5, 10, 15, 20]),
        (("Epoch 1/2", "Epoch 2/2"), [5, 10, 15, 20]),
        (("Epoch 4", "Epoch 5"), [45, 50, 55, 60]),
        (("epoch 4/9", "epoch 5/9"), [35, 40, 45, 50]),
        (("train", "train"), [5, 10, 15, 20]),
        (("", ""), [5, 10, 15, 20]),
    ],
)
def test_epochs_of_a_bar_add_up(labels: tuple[str, str], expected: list[int]) -> None:
    bar = "{}  1%|  | {}/10 [00:01<00:09, 9.9it/s]\n"
    text = "".join(bar.format(label + ":" * bool(label), n) for label in labels for n in (0, 5, 10))
    assert steps(marks_of(text)) == expected


@pytest.mark.parametrize(("first", "every"), [(0, 1), (1, 1), (0, 10), (10, 10)])
def test_numbers_that_start_again_go_on_counting(first: int, every: int) -> None:
    numbers = [*range(first, first + 4 * every, every)] * 3
    marks = marks_of("".join(f"iter {n}: loss 1.0\n" for n in numbers))
    assert steps(marks) == [first + every * k for k in range(12)]


# ---- the job's own pattern


@pytest.mark.parametrize(
    ("pattern", "output", "expected"),
    [
        (r"epoch (\d+) batch (?P<step>\d+)", "epoch 1 batch 2\nepoch 1 batch 3\n", [2, 3]),
        (r"batch (\d+)", "batch 2\nbatch 1,003\n", [2, 1003][:1]),
        (r"batch ([\d,_]+)", "batch 2\nbatch 1,003\nbatch 2_000\n", [2, 1003, 2000]),
        (r"^done$", "done\nnot done\ndone\n", [1, 2]),
        (r"über (\d+)", "über 7\n", [7]),
        (r"batch (\w+)", "batch two\nbatch 3\n", [3]),
        (r"batch (\d+)?", "batch\nbatch 3\n", [3]),
        (r"b (\d+)", "b " + "9" * 5000 + "\nb 3\n", [3]),
        (r"s (\d+)", "\x1b[31ms 4\x1b[0m\n", [4]),
    ],
)
def test_own_pattern_finds_its_steps(pattern: str, output: str, expected: list[int]) -> None:
    assert steps(marks_of(output, pattern))[: len(expected)] == expected


def test_own_pattern_goes_before_everything_built_in() -> None:
    marks = marks_of("iter 5: loss 1.0\nbatch 77\n" + PLAIN_BAR, r"batch (\d+)")
    assert steps(marks) == [77]
    assert sources(marks) == {"pattern"}


PLAIN_BAR = "  1%|  | 10/900 [00:01<00:09, 9.9it/s]\n"


@pytest.mark.parametrize("pattern", ["(", "", "a{99999999999}", "(?P<step>", "x*", "(?<=a+)b", "y" * 3000])
def test_pattern_that_cannot_be_used_is_refused_in_words(pattern: str) -> None:
    problem = validate_pattern(pattern)
    assert problem
    assert "\n" not in problem
    with pytest.raises(ValueError, match=r".+"):
        Scanner(pattern)


def test_good_pattern_has_no_problem() -> None:
    assert validate_pattern(r"step (?P<step>\d+)") is None


def test_catastrophic_pattern_is_given_up_and_said_so() -> None:
    scanner = Scanner(r"(a+)+b (\d+)")
    begun = time.process_time()
    marks = scanner.feed("stdout", b"a" * 4000 + b"\n", SECOND)
    marks += scanner.feed("stdout", b"a" * 4000 + b"\nab 3\n", 2 * SECOND) + scanner.flush(3 * SECOND)
    assert time.process_time() - begun < 30  # not for ever; figures live in bench/
    assert [mark["k"] for mark in marks] == ["note"]


def test_own_pattern_looks_at_the_first_4096_characters_only() -> None:
    assert steps(marks_of(" " * 4090 + "batch 7\n" + "batch 8\n", r"batch (\d+)")) == [8]


def test_random_text_with_words_of_training_is_harmless() -> None:
    dice = random.Random(7)
    words = [
        "loss",
        "step",
        "iter",
        "epoch",
        "12",
        ":",
        "|",
        "%",
        "[",
        "it/s]",
        "checkpoint",
        "3/4",
        "\r",
        "\n",
    ]
    text = " ".join(dice.choice(words) for _ in range(20_000))
    assert steps(marks_of(text)) == sorted(set(steps(marks_of(text))))
