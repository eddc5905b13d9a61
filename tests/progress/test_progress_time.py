"""No output can hold up the process that reads it: here is what makes a pattern try again, 1 MB of each."""

from __future__ import annotations

import time

import pytest

import nightly
from unidle.engine.local.ranks.supervisor.progress import Scanner
from unidle.engine.local.ranks.supervisor.progress.loss import loss_in

MEGABYTE = 1_000_000
CHUNK_BYTES = 256 * 1024
LONGEST = 65_000  # bytes of a line that are read
LIMIT_S = 1.5
"""Of processor time for 1 MB, which takes a few hundredths of a second. The patterns of before took 3 to more than 45 s."""

UNITS = (
    b"1", b" ", b"a", b"[", b"(", b"|", b"1 ", b" 1/1", b"=", b"-", b"| ", b"1%", b" 1% ", b"Epoch 1/1 ", b"Epoch 1/1 1/1 ",
    b"{'loss': ", b"{'eval_'eval_runtime': ", b"Finished saving the checkpoint in ", b"step:1 ", b"iteration 1/", b"loss ",
    b"loss 1 ", b"trainevalin-", b"1,", b"| train_inner | ", b"1/2 loss", b":1% ", b"\x1b[", b"f(", b"epoch 1: 1 / 1 ",
)  # fmt: skip
STARTS = (
    b"", b"iter 1: loss ", b"step:", b" iteration 1/ 2 | per iteration (ms): ", b"1%|  | 1/2 [00:01<00:02, 1it/s] ", b"Epoch 1/2 ",
    b"{'loss': 1 ", b"{'eval_a': 1, ", b"Finished saving the checkpoint ", b"[1]\ttrain", b"1/2 1G :1% ", b"1/2 loss: ",
    b"| train_inner | ", b"[", b"'epoch': ", b"'epoch': {'eval_a': 1, ", b"\xe2\x80\xa2 ", b"in 1.5 seconds checkpoint ", b"%| [ /",
)  # fmt: skip
ENDS = (b"", b" %| 1/2 [00:01<00:02, 1it/s]x", b" 'epoch': checkpoint \xe2\x80\xa2 loss: GiB(")
FORMS = {
    "none": b"",
    "guessed": b"".join(b"a %d 2 3 4 5 6 step %d loss 1.5 lr 3\n" % (n, n) for n in range(8)),
    "ultralytics": b"  1/9 1.2G 0.5 1 2 640: 50% |##| 1/2 00:01\n  1/9 1.2G 0.5 1 2 640: 99% |##| 2/2 00:01\n",
    "xgboost": b"".join(b"[%d]\ttrain-rmse:0.5\n" % n for n in range(4)),
    "fairseq": b"".join(
        b"x | train_inner | epoch 001: 1 / 9 loss=1, num_updates=%d, lr=1\n" % n for n in range(1, 4)
    ),
    "keras": b"Epoch 1/2\n1/9 [=...] - ETA: 1s - loss: 0.5\n2/9 [=...] - ETA: 1s - loss: 0.5\n",
}


def seconds(data: bytes, begin: bytes = b"") -> float:
    """Processor time of a scanner that has read ``begin``, for ``data`` and the end."""
    scanner = Scanner()
    scanner.feed("out", begin, 1)
    started = time.process_time()
    for at in range(0, len(data), CHUNK_BYTES):
        scanner.feed("out", data[at : at + CHUNK_BYTES], at + 2)
    scanner.flush(len(data) + 3)
    return time.process_time() - started


def lines(start: bytes, end: bytes, size: int) -> bytes:
    made = [start + unit * ((size - len(start) - len(end)) // len(unit)) + end for unit in UNITS]
    return b"\n".join(made) + b"\n"


WORST = (
    b"1" * 60_000 + b" %| 1/2 [00:01<00:02, 1it/s]x",
    b" " * 60_000 + b" %| 1/2 [00:01<00:02, 1it/s]x",
    b"Epoch 1/1 1/1 " * 4200 + b"\xe2\x80\xa2 ",
    b"'epoch': " + b"{'loss': " * 6500,
    b"'epoch': " + b"{'eval_'eval_runtime': " * 2800,
    b"in 1.5 seconds " + b"Finished saving the checkpoint in " * 1900,
)
"""The lines that patterns took longest for."""


@pytest.mark.parametrize("line", WORST, ids=lambda line: line[:24].decode())
def test_a_megabyte_of_the_worst_lines_does_not_take_long(line: bytes):
    assert seconds((line + b"\n") * 15) < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("size", [MEGABYTE, LONGEST])
@pytest.mark.parametrize("start", STARTS)
def test_no_lines_of_a_megabyte_take_long(start: bytes, size: int):
    slow = {}
    tried = [(end, line) for end in ENDS for line in lines(start, end, size).splitlines(keepends=True)]
    for end, line in nightly.every(13, tried, first=STARTS.index(start)):
        if (took := seconds(line * (MEGABYTE // size))) > LIMIT_S:
            slow[start, line[len(start) :][:20], end] = took
    assert slow == {}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_line_takes_long_to_read_by_the_form_that_was_found(form: str):
    slow = {}
    tried = [(start, size) for start in STARTS for size in (1000, 60_000)]
    for start, size in nightly.every(9, tried, first=list(FORMS).index(form)):
        data = b"".join(lines(start, end, size) for end in ENDS)
        if (took := seconds(data, FORMS[form])) > LIMIT_S:
            slow[start, size] = took
    assert slow == {}


def test_the_forms_of_these_tests_are_found():
    found = {}
    for name, text in FORMS.items():
        scanner = Scanner()
        scanner.feed("out", text, 1)
        found[name] = scanner.form[0] if scanner.form else "none"
    assert found == {name: {"guessed": "lines"}.get(name, name) for name in FORMS}


def test_figures_too_long_for_a_number_are_no_steps():
    many = b"9" * 5000
    for line in (
        b" 50%%|##| %b/%b [00:01<00:02, 1it/s]" % (many, many),
        b"Epoch %b: 50%%|##| 1/2 [00:01<00:02, 1.2.3it/s]" % many,
        b"iter %b: loss 1" % many,
        b"Epoch %b/2 x 1/2 0:00:01 \xe2\x80\xa2" % many,
    ):
        scanner = Scanner()
        marks = scanner.feed("out", line + b"\n", 1) + scanner.flush(2)
        assert all(mark.get("n", 0) < 10**18 for mark in marks)


def test_the_word_of_an_evaluation_counts_for_all_losses_behind_it_in_its_line():
    assert loss_in(b"loss 1 val loss 2 loss 3\n") == 1
    assert loss_in(b"val loss 2\nloss 3 loss 4\n") == 4
    assert loss_in(b"val loss 2 train loss 5 loss 6\n") == 5
    started = time.process_time()
    for _ in range(20):
        loss_in(b"loss 1 " * 585)
    assert time.process_time() - started < LIMIT_S
