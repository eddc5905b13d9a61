"""How training frameworks write steps, evaluations and checkpoints: byte patterns for one line.

The forms are those of nanoGPT's ``train.py``, torchtitan's metrics processor, Megatron-LM's
``training_log`` and ``save_checkpoint``, DeepSpeed's engine and throughput timer, the Hugging Face
``Trainer``'s log of metrics, and Lightning's rich progress bar (tqdm's bars: see ``bars``).

Every pattern takes time in proportion to the line, whatever is in it: what repeats is bounded, and two parts of a
line that may be far apart are searched for one after the other.
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
    ("nanogpt", b": loss", rb"(?:^|[\s\]:])iter (\d{1,18}): loss [-+.\dni]"),
    (
        "torchtitan",
        b"loss:",
        rb"(?<!validate )\bstep:\s{0,16}(\d{1,18})(?:/\d{1,18} = [\d.]{1,18}%)?\s{1,16}loss:\s",
    ),
    ("megatron", b"per iteration (ms)", rb"\biteration\s{1,16}(\d{1,18})/\s{0,16}(?:\d{1,18}|infinity) \|"),
    ("deepspeed", b"skipped=", rb"\bstep=(\d{1,18}), skipped=\d{1,18}, lr="),
    ("deepspeed", b"SamplesPerSec=", rb"\bglobal_step=(\d{1,18}), RunningAvgSamplesPerSec="),
)

# Lightning's rich bar: its epoch, and behind it batch and batches.
_RICH_EPOCH = rb"\bEpoch (\d{1,9})/-?\d{1,18}\s"
_RICH_BATCH = rb"\s(\d{1,9})/(\d{1,9}) \d{1,4}:\d\d:\d\d \xe2\x80\xa2"

# The Trainer's dictionaries; since transformers 5 their values are quoted.
_HF_RUNTIME = rb"'eval_runtime': '?([\d.]{1,32})'?[,}]"

NANOGPT_EVAL = rb"(?:^|[\s\]:])step (\d{1,18}): train loss [-+.\dni]{1,32}, val loss "
TORCHTITAN_EVAL = rb"\bvalidate step:\s{0,16}(\d{1,18})\s{1,16}loss:\s"
_TORCHTITAN_SAVED = b"Finished saving the checkpoint "
_TORCHTITAN_TOOK = rb"in ([\d.]{1,32}) seconds"
MEGATRON_EVAL_BEGINS = rb"(?:^|[\s\]:])Evaluating on \d{1,18} samples"
MEGATRON_EVAL_ENDS = rb"\bvalidation loss at iteration (\d{1,18})"
MEGATRON_SAVE_BEGINS = rb"(?:^|\s)saving checkpoint at iteration\s{1,16}(\d{1,18})"
MEGATRON_SAVED = rb"\bsuccessfully saved checkpoint from iteration\s{1,16}(\d{1,18})"

ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def rich_bar(line: bytes) -> tuple[int, int, int] | None:
    """Epoch, batch and batches of Lightning's rich bar; None where ``line`` is none."""
    batch = re.search(_RICH_BATCH, line)
    epoch = None if batch is None else re.search(_RICH_EPOCH, line[: batch.start() + 1])
    if batch is None or epoch is None:
        return None
    return int(epoch[1]), int(batch[1]), int(batch[2])


def is_trainer_log(line: bytes) -> bool:
    """Whether the Hugging Face Trainer logs metrics of training in ``line``."""
    begin = line.find(b"{'loss': ")
    return begin >= 0 and line.find(b"'epoch': ", begin) >= 0


def trainer_eval(line: bytes) -> bytes | None:
    """How long the evaluation took that the Hugging Face Trainer reports in ``line``, in seconds; None without one."""
    begin = line.find(b"{'eval_")
    found = re.search(_HF_RUNTIME, line[begin:]) if begin >= 0 else None
    return None if found is None else found[1]


def torchtitan_save(line: bytes) -> bytes | None:
    """How long the checkpoint took that torchtitan reports in ``line``, in seconds; None without one."""
    begin = line.find(_TORCHTITAN_SAVED)
    found = re.search(_TORCHTITAN_TOOK, line[begin:]) if begin >= 0 else None
    return None if found is None else found[1]


def own_pattern(source: str) -> str | None:
    """A job's own pattern that reads what ``source`` was read from; None where a line alone does not have the step."""
    if source == "huggingface":
        return r"\{'loss': "
    found = [pattern for name, _, pattern in STEPS if name == source]
    return "|".join(pattern.decode() for pattern in found[:1]) or None
