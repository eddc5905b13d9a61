"""Lines as the frameworks really print them, and lines that only look alike."""

from __future__ import annotations

import pytest

from progress.feeding import marks_of, sources, spans, steps
from unidle.engine.local.ranks.supervisor.progress.scanner import read_output

NANOGPT = """\
tokens per iteration will be: 16,384
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2664, time 45215.13ms, mfu -100.00%
iter 1: loss 3.1441, time 34.66ms, mfu -100.00%
step 2: train loss 2.4569, val loss 2.4803
saving checkpoint to out-shakespeare-char
iter 2: loss 2.4915, time 8122.26ms, mfu 3.32%
"""
TORCHTITAN = """\
[rank0]:[titan] 2025-06-04 10:31:22,905 - root - INFO - Training starts at step 1.
[rank0]:[titan] 2025-06-04 10:31:28,041 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1309  \
\x1b[38;2;180;60;0mgrad_norm:  1.5317  \x1b[38;2;54;234;195mmemory:  1.61GiB(1.69%)  \x1b[34mtps: 4,021  \
\x1b[36mtflops: 0.29  \x1b[35mmfu: 0.03%\x1b[39m
[rank0]:[titan] 2025-06-04 10:31:29,110 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.4213  \
\x1b[38;2;180;60;0mgrad_norm:  1.9421  \x1b[38;2;54;234;195mmemory:  1.61GiB(1.69%)  \x1b[34mtps: 138,122  \
\x1b[36mtflops: 9.87  \x1b[35mmfu: 1.00%\x1b[39m
[rank0]:[titan] 2025-06-04 10:31:29,512 - root - INFO - \x1b[33mvalidate step: 10  \x1b[32mloss:  7.4012  \
\x1b[38;2;54;234;195mmemory:  1.61GiB(1.69%)  \x1b[34mtps: 210,001\x1b[39m
[rank0]:[titan] 2025-06-04 10:31:29,612 - root - INFO - Saving the checkpoint (or staging if async is enabled).
[rank0]:[titan] 2025-06-04 10:31:30,712 - root - INFO - \
Finished saving the checkpoint (or staging if async is enabled)in 0.75 seconds.
"""
MEGATRON = """\
 [2025-03-02 11:04:12] iteration      201/  250000 | consumed samples:       205824 | \
elapsed time per iteration (ms): 139113.4 | learning rate: 1.507E-05 | global batch size:  1024 | \
lm loss: 2.373574E+00 | loss scale: 1.0 | grad norm: 0.811 | number of skipped iterations:   0 | \
number of nan iterations:   0 |
Evaluating on 1280 samples
Evaluating iter 1/10
 validation loss at iteration 201 on validation set | lm loss value: 2.331E+00 | lm loss PPL: 1.028E+01 |
saving checkpoint at iteration     201 to /data/ckpt in torch_dist format
  successfully saved checkpoint from iteration     201 to /data/ckpt [ t 1/1, p 1/1 ]
 [2025-03-02 11:06:32] iteration      202/  250000 | consumed samples:       206848 | \
elapsed time per iteration (ms): 139221.4 | learning rate: 1.515E-05 | global batch size:  1024 | \
lm loss: 2.413736E+00 | loss scale: 1.0 | grad norm: 0.567 |
"""
DEEPSPEED = """\
[2022-03-11 02:06:58,985] [INFO] [logging.py:69:log_dist] [Rank 0] step=40, skipped=2, lr=[5e-05], \
mom=[[0.9, 0.999]]
[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.48609168106144, \
MemAllocated=0.26GB, MaxMemAllocated=9.02GB
[2023-07-25 21:03:17,269] [INFO] [timer.py:215:stop] epoch=0/micro_step=50/global_step=50, \
RunningAvgSamplesPerSec=7.864669709950182, CurrSamplesPerSec=8.00912418308922, MemAllocated=59.65GB
"""
# transformers 5.23, a run of 24 steps that evaluates every 10; standard error and output as they came
TRAINER = (
    "\r  0%|          | 0/24 [00:00<?, ?it/s]"
    "\r 21%|██        | 5/24 [00:00<00:00, 66.50it/s]"
    "\r                                              \r"
    "{'loss': '3.901', 'grad_norm': '0.8618', 'learning_rate': '4.167e-05', 'epoch': '0.3125'}\n"
    "\r 42%|████▏     | 10/24 [00:00<00:00, 111.90it/s]\n"
    "\r  0%|          | 0/30 [00:00<?, ?it/s]\x1b[A"
    "\n\r 50%|█████     | 15/30 [00:00<00:00, 1090.68it/s]\x1b[A"
    "\n\r                                      \r\x1b[A"
    "{'eval_loss': '3.899', 'eval_runtime': '0.5', 'eval_samples_per_second': '994.6', 'epoch': '0.625'}\n"
    "\r 42%|████▏     | 10/24 [00:00<00:00, 83.32it/s]"
    "\n\r100%|██████████| 30/30 [00:00<00:00, 1090.68it/s]\x1b[A"
    "\n\rWriting model shards:   0%|          | 0/1 [00:00<?, ?it/s]\x1b[A"
    "\rWriting model shards: 100%|██████████| 1/1 [00:00<00:00, 164.50it/s]\n"
    "\r 46%|████▌     | 11/24 [00:00<00:00, 58.64it/s]"
    "\r100%|██████████| 24/24 [00:00<00:00, 80.50it/s]\n"
    "{'train_runtime': '0.2988', 'train_samples_per_second': '321.3', 'train_loss': '3.902', 'epoch': '1.5'}\n"
)
# lightning 2.6 with its tqdm bar: two epochs of 10 batches
LIGHTNING = (
    "\rSanity Checking: |          | 0/? [00:00<?, ?it/s]"
    "\rSanity Checking DataLoader 0:  50%|█████     | 1/2 [00:00<00:00, 109.22it/s]"
    "\rSanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 187.25it/s]"
    "\r                                                                            \r"
    "\rTraining: |          | 0/? [00:00<?, ?it/s]"
    "\rEpoch 0:   0%|          | 0/10 [00:00<?, ?it/s]"
    "\rEpoch 0:  10%|█         | 1/10 [00:00<00:00, 445.07it/s]"
    "\rEpoch 0:  10%|█         | 1/10 [00:00<00:00, 411.77it/s, v_num=1, train_loss=1.160]"
    "\rEpoch 0: 100%|██████████| 10/10 [00:00<00:00, 665.82it/s, v_num=1, train_loss=0.0129]"
    "\n\rValidation: |          | 0/? [00:00<?, ?it/s]\x1b[A"
    "\n\rValidation DataLoader 0:  25%|██▌       | 1/4 [00:00<00:00, 1625.07it/s]\x1b[A"
    "\n\rValidation DataLoader 0: 100%|██████████| 4/4 [00:00<00:00, 1568.55it/s]\x1b[A"
    "\n\r                                                                        \x1b[A"
    "\rEpoch 0: 100%|██████████| 10/10 [00:00<00:00, 517.86it/s, v_num=1, train_loss=0.0129]"
    "\rEpoch 0:   0%|          | 0/10 [00:00<?, ?it/s, v_num=1, train_loss=0.0129]          "
    "\rEpoch 1:   0%|          | 0/10 [00:00<?, ?it/s, v_num=1, train_loss=0.0129]"
    "\rEpoch 1:  30%|███       | 3/10 [00:00<00:00, 619.63it/s, v_num=1, train_loss=0.00514]"
    "\rEpoch 1: 100%|██████████| 10/10 [00:00<00:00, 491.70it/s, v_num=1, train_loss=0.000768]\n"
)
LIGHTNING_RICH = (
    "Epoch 1/1  ━━━━━━━━━━━━━━━━ 10/10 0:00:00 • 0:00:00 845.29it/s v_num: 0.000     \n"
    "                                                               train_loss: 0.002\n"
)
PLAIN_TQDM = (
    "\r  0%|          | 0/500 [00:00<?, ?it/s]"
    "\r  2%|▏         | 10/500 [00:01<00:49,  9.90it/s]"
    "\r100%|██████████| 500/500 [00:50<00:00,  9.90it/s, loss=2.31]\n"
)


@pytest.mark.parametrize(
    ("output", "source", "expected"),
    [
        (NANOGPT, "nanogpt", [0, 1, 2]),
        (TORCHTITAN, "torchtitan", [1, 10]),
        ("[titan] - root - INFO - step: 640/644 = 99.3789%  loss:  6.2116  memory: 87.04GiB(93.48%)  tps: 1\n",
         "torchtitan", [640]),
        (MEGATRON, "megatron", [201, 202]),
        (DEEPSPEED, "deepspeed", [40, 50]),
        (LIGHTNING, "lightning", [1, 10, 13, 20]),
        (LIGHTNING_RICH, "lightning", [20]),
        (PLAIN_TQDM, "tqdm", [10, 500]),
        ("\r12it [00:01,  9.00it/s]\r25it [10:02:17,  4.47s/it]\n", "tqdm", [12, 25]),
        ("[rank3]:\rtrain:  62%|######2   | 31/50 [1:04:51<39:44, 125.5s/step, loss=nan]\n", "tqdm", [31]),
    ],
)  # fmt: skip
def test_steps_are_read_as_each_framework_prints_them(output: str, source: str, expected: list[int]) -> None:
    marks = marks_of(output)
    assert steps(marks) == expected
    assert sources(marks) == {source}


def test_trainer_counts_by_its_training_bar_and_not_by_its_evaluation_bar() -> None:
    marks = marks_of(TRAINER)
    assert steps(marks) == [5, 10, 11, 24]
    assert marks[-1]["o"] == "huggingface"


def test_resumed_trainer_goes_on_from_its_bar() -> None:
    bar = "\r  0%|          | 0/24 [00:00<?, ?it/s]\r 88%|████████▊ | 21/24 [00:00<00:00, 52.39it/s]"
    assert steps(marks_of(bar + "\r25it [00:01, 52.39it/s]\n")) == [21, 25]


def test_trainer_without_a_bar_counts_its_lines_of_metrics() -> None:
    line = "{'loss': 2.3, 'grad_norm': 1.7, 'learning_rate': 4.9e-05, 'epoch': 0.02}\n"
    assert steps(marks_of(line * 3)) == [1, 2, 3]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 3:",
        "Epoch 3/10",
        "the next step 12 is to write a README",
        "step 250: train loss 1.9, val loss 2.0",
        "INFO - validate step: 10  loss:  7.4012  memory:  1.61GiB(1.69%)  tps: 210,001",
        "iteration 12 of the outer loop, loss went down",
        "Downloading model.safetensors:  31%|███       | 31/100 [00:03<00:07,  9.90it/s]",
        "model.bin:  31%|███       | 1.31G/4.20G [00:03<00:07, 400MB/s]",
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:01<00:00,  1.50it/s]",
        "Map (num_proc=4):  50%|█████     | 5000/10000 [00:01<00:01, 4000.00 examples/s]",
        "Tokenizing:  50%|█████     | 500/1000 [00:01<00:01, 400.00it/s]",
        "Evaluating:  50%|█████     | 15/30 [00:00<00:00, 30.00it/s]",
        "Validation DataLoader 0:  25%|██▌       | 1/4 [00:00<00:00, 1625.07it/s]",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 187.25it/s]",
        "Predicting DataLoader 0:  50%|█████     | 2/4 [00:00<00:00, 187.25it/s]",
        "  0%|          | 0/24 [00:00<?, ?it/s]",
        "Epochs:  50%|█████     | 1/2 [00:50<00:50, 50.00s/epoch]",
        "saving checkpoint at iteration     201 to /data/ckpt",
        "[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.4, MemAllocated=0.26GB",
        "\x00\xff\xfe iter \x80: loss",
    ],
)
def test_what_only_looks_like_a_step_is_none(line: str) -> None:
    assert steps(marks_of(line + "\n")) == []


def test_evaluation_of_nanogpt_lasts_from_the_step_before_it() -> None:
    assert spans(marks_of(NANOGPT)) == [("eval", 4, 5)]


def test_evaluation_and_saving_of_torchtitan_are_spans() -> None:
    assert spans(marks_of(TORCHTITAN)) == [("eval", 3, 4), ("save", 5.25, 6)]


def test_megatron_tells_evaluation_saving_and_the_saved_step() -> None:
    marks = marks_of(MEGATRON)
    assert spans(marks) == [("eval", 2, 4), ("save", 5, 6)]
    assert [(mark["n"], mark["t"]) for mark in marks if mark["k"] == "saved"] == [(201, 6_000_000_000)]


def test_checkpoint_that_megatron_writes_beside_the_steps_blocks_nothing() -> None:
    iteration = " iteration {:8d}/ 500 | elapsed time per iteration (ms): 100.0 |\n"
    marks = marks_of(
        iteration.format(10)
        + "saving checkpoint at iteration      10 to /data/ckpt\n"
        + iteration.format(11)
        + "  successfully saved checkpoint from iteration      10 to /data/ckpt\n"
    )
    assert spans(marks) == []
    assert [mark["n"] for mark in marks if mark["k"] == "saved"] == [10]


def test_evaluation_of_the_trainer_lasts_as_long_as_it_says() -> None:
    [(what, start, end)] = spans(marks_of(TRAINER))
    assert what == "eval"
    assert end - start == 0.5


def test_validation_of_lightning_lasts_as_long_as_its_bar() -> None:
    [(what, start, end)] = spans(marks_of(LIGHTNING))
    assert what == "eval"
    assert start < end


def test_steps_of_stylegan_namd_and_fastprogress_are_read():
    ticks = "".join(f"tick {n:<5d} kimg {n * 4:<8.1f} time {n}m 20s      sec/tick 9.5\n" for n in range(6))
    energies = "".join(
        f"ENERGY:{n * 100:8d}      1.5000    2.5000   -3.5000    4.5000    5.5    6.5  7\n" for n in range(6)
    )
    pictures = [(epoch, k) for epoch in (1, 2) for k in range(11)]
    bars = "".join(
        f"\rEpoch {epoch}/2 : |{'█' * k}{'-' * (10 - k)}| {k * 10:.2f}% [{k}/10 00:01<00:09 0.5]"
        for epoch, k in pictures
    )
    for name, text, last in (
        ("stylegan", ticks, 5),
        ("namd", energies, 500),
        ("fastprogress", bars + "\n", 20),
    ):
        found = read_output([text.encode()])
        assert (found.form, found.first, found.last) == (name, 0, last)


def test_downloads_and_clocks_like_them_are_no_steps():
    bars = "".join(
        f"\rmodel.bin : |{'█' * k}{'-' * (9 - k)}| {k * 11:.2f}% [{k}/9 00:01<00:09]" for k in range(10)
    )
    for text in (
        bars + "\n",
        "".join(f"tick {n} of the clock\n" for n in range(9)),
        "ENERGY: 5 W\nENERGY: 6 W\n",
    ):
        assert read_output([text.encode()]).form is None
