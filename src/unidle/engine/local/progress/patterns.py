"""How training frameworks write steps, evaluations and checkpoints: byte patterns for one line.

The forms are those of nanoGPT's ``train.py``, torchtitan's metrics processor, Megatron-LM's
``training_log`` and ``save_checkpoint``, DeepSpeed's engine and throughput timer, the Hugging Face
``Trainer``'s log of metrics, and Lightning's rich progress bar (tqdm's bars: see ``bars``).
"""

from __future__ import annotations

import re

# A line without any of these is never looked at. Literals only, with rare first characters, so that
# the search runs at memory speed: a bar ends its rate with "it/s]" or "s/it,", a torchtitan line
# holds "12.34GiB(", and "kpoint" is found sooner than "checkpoint".
NEEDLES = re.compile(
    rb": loss |'epoch': |, val loss |GiB\(|%\||/s\]|/s,|/it\]|/it,|/\? \[|\(ms\): |, skipped=|SamplesPerSec="
    rb"|kpoint|validation loss |Evaluating on |\xe2\x80\xa2 "
)

# Source, what the line must hold, and the step. The first that matches speaks for the line.
STEPS = (
    ("nanogpt", b": loss", rb"(?:^|[\s\]:])iter (\d+): loss [-+.\dni]"),
    ("torchtitan", b"loss:", rb"(?<!validate )\bstep:\s*(\d+)(?:/\d+ = [\d.]+%)?\s+loss:\s"),
    ("megatron", b"per iteration (ms)", rb"\biteration\s+(\d+)/\s*(?:\d+|infinity) \|"),
    ("deepspeed", b"skipped=", rb"\bstep=(\d+), skipped=\d+, lr="),
    ("deepspeed", b"SamplesPerSec=", rb"\bglobal_step=(\d+), RunningAvgSamplesPerSec="),
)
FRAMEWORKS = frozenset({"nanogpt", "torchtitan", "megatron", "deepspeed", "lightning", "huggingface"})

# Epoch, batch and batches of Lightning's rich bar.
RICH_BAR = rb"\bEpoch (\d+)/-?\d+\s.*?\s(\d+)/(\d+) \d+:\d\d:\d\d \xe2\x80\xa2"

# The Trainer's dictionaries; since transformers 5 their values are quoted.
HF_TRAIN = rb"\{'loss': .*'epoch': "
HF_EVAL = rb"\{'eval_.*'eval_runtime': '?([\d.]+)'?[,}]"

NANOGPT_EVAL = rb"(?:^|[\s\]:])step (\d+): train loss [-+.\dni]+, val loss "
TORCHTITAN_EVAL = rb"\bvalidate step:\s*(\d+)\s+loss:\s"
TORCHTITAN_SAVED = rb"Finished saving the checkpoint .*?in ([\d.]+) seconds"
MEGATRON_EVAL_BEGINS = rb"(?:^|[\s\]:])Evaluating on \d+ samples"
MEGATRON_EVAL_ENDS = rb"\bvalidation loss at iteration (\d+)"
MEGATRON_SAVE_BEGINS = rb"(?:^|\s)saving checkpoint at iteration\s+(\d+)"
MEGATRON_SAVED = rb"\bsuccessfully saved checkpoint from iteration\s+(\d+)"

ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def own_pattern(source: str) -> str | None:
    """A job's own pattern that reads what ``source`` was read from; None where a line alone does not have the step."""
    if source == "huggingface":
        return r"\{'loss': "
    found = [pattern for name, _, pattern in STEPS if name == source]
    return "|".join(pattern.decode() for pattern in found[:1]) or None
