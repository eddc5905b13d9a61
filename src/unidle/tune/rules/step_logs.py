"""UDL2xx: what is saved and logged in each step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import keyword, literal

SAVES = (
    "torch.save",
    "torch.distributed.checkpoint.save",
    "safetensors.torch.save_file",
    "torch.distributed.checkpoint.save_state_dict",
)
FEW_STEPS = 10


@rule(
    "UDL207",
    "saved-each-step",
    "a checkpoint is written in each step, and the step waits for it; save every N steps, or asynchronously",
)
def saved_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(*SAVES):
        if facts.hot(call):
            yield call
    for call in facts.method_calls("save_pretrained", "save_checkpoint", "save_state"):
        if facts.training(call):
            yield call
    for call in facts.calls("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"):
        every = literal(keyword(call, "save_steps"))
        if (
            isinstance(every, int)
            and not isinstance(every, bool)
            and 1 <= every < FEW_STEPS
            and literal(keyword(call, "save_strategy")) in (None, "steps")
        ):
            yield call


@rule("UDL213", "histogram-each-step", "a histogram or image is logged in each step; log it every N steps")
def histogram_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls(
        "add_histogram", "add_image", "add_images", "add_figure", "add_embedding", "add_graph"
    ):
        if facts.hot(call):
            yield call
    for call in facts.calls("wandb.Histogram", "wandb.Image"):
        if facts.hot(call):
            yield call


@rule("UDL214", "logged-each-step", "the trainer logs each step; raise its logging interval")
def logged_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    trainers = {
        "transformers.TrainingArguments": "logging_steps",
        "transformers.Seq2SeqTrainingArguments": "logging_steps",
        "lightning.Trainer": "log_every_n_steps",
    }
    for name, option in trainers.items():
        for call in facts.calls(name):
            if literal(keyword(call, option)) == 1 and literal(keyword(call, option)) is not True:
                yield call


@rule("UDL215", "figure-drawn-each-step", "a figure is drawn in each step; draw it after the epoch")
def figure_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("matplotlib.pyplot.savefig", "matplotlib.pyplot.show", "matplotlib.pyplot.pause"):
        if facts.training(call):
            yield call
