"""From a fill file to what is simulated: inconsistent fields are one error with its line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unidle.files.check import convert
from unidle.files.document import Bounds, Document
from unidle.files.load import base_dir_of, load_document
from unidle.fill.files.file import OWN_FIELDS, FillFile, PromptsPart, TokensPart
from unidle.fill.files.trace import load_lengths, load_trace
from unidle.fill.model.prefill import InferenceModel
from unidle.fill.simulate.arrivals import PromptProcess
from unidle.span.files.setting import setting_of
from unidle.span.model.setting import Setting

PLAYED_MOST: Final = 5_000_000  # operations of training over all iterations, and as many prompts


@dataclass(frozen=True, slots=True)
class FillRequestFile:
    """What a fill file requests; ``chunk_tokens`` and ``gives_way_ns``: of our own policy."""

    setting: Setting
    model: InferenceModel
    prompts: PromptProcess
    seconds: float
    jitter: float
    seed: int
    chunk_tokens: int
    gives_way_ns: int
    dedicated_gpus: int


def load_fill(path: str | os.PathLike[str]) -> FillRequestFile:
    """The fill file ``path``, YAML or JSON; ``-`` is standard input. Errors: :class:`unidle.errors.BadInput`, with the line."""
    return fill_of(load_document(path, what="fill", bounds=Bounds()), base_dir_of(path))


def fill_of(document: Document, base: str) -> FillRequestFile:
    """The same of a document that was read; paths in it are relative to ``base``."""
    if not isinstance(document.data, Mapping):
        raise document.error(
            (), "a fill file must be a mapping of fields", remedy="it is a span file with `prompts` and `inference`"
        )  # fmt: skip
    file = convert(document, FillFile, what="fill")
    setting = setting_of(_span_part(document))
    given = file.inference
    tflops = given.tflops or file.device_tflops
    if tflops is None:
        raise document.error(
            ("inference", "tflops"),
            "the field is missing",
            remedy="give the rate of a device, for instance 156",
        )
    model = InferenceModel(
        given.model.layers, given.model.hidden, given.pp, tflops, given.model.bytes_per_value, given.model.kv_share,
        file.local_gbps, given.memory_gb_per_s, given.decode_batch,
    )  # fmt: skip
    _fits(document, file, model, setting)
    return FillRequestFile(
        setting, model, _prompts(document, file, base), file.seconds, file.jitter_pct / 100, file.seed, given.chunk_tokens,
        round(given.gives_way_us * 1000), given.dedicated_gpus,
    )  # fmt: skip


def _span_part(document: Document) -> Document:
    """The document without the fields that a span file does not have."""
    data = document.data
    assert isinstance(data, Mapping)
    rest = {key: value for key, value in data.items() if key not in OWN_FIELDS}
    marks = dict(document.marks)
    if id(data) in marks:
        marks[id(rest)] = marks[id(data)]
    return Document(rest, document.source, marks)


def _fits(document: Document, file: FillFile, model: InferenceModel, setting: Setting) -> None:
    if model.layers < model.pp:
        raise document.error(
            ("inference", "pp"), f"is more than the {model.layers} layers of the model", value=model.pp,
            remedy="each device has a layer at least",
        )  # fmt: skip
    most = max(site.stages for site in setting.sites) * setting.pipelines
    if model.pp > most:
        raise document.error(
            ("inference", "pp"), f"is more than the {most} devices of the largest site", value=model.pp,
            remedy="an inference pipeline stays inside one site",
        )  # fmt: skip
    useful = min(
        sum(stage.useful_ns for stage in setting.stages) * setting.microbatches / len(setting.stages), 1e18
    )
    played = file.seconds * 1e9 / max(useful, 1) * setting.devices * setting.microbatches * 3
    if played > PLAYED_MOST:
        raise document.error(
            ("seconds",), f"are up to {played:,.0f} operations of training, and at most {PLAYED_MOST:,} are simulated",
            value=file.seconds, remedy="simulate fewer seconds, or fewer pipelines",
        )  # fmt: skip


def _prompts(document: Document, file: FillFile, base: str) -> PromptProcess:
    part = file.prompts
    traced = part.process == "trace"
    if traced and part.rate_per_s is not None:
        raise document.error(
            ("prompts", "rate_per_s"), "follows from the trace", value=part.rate_per_s, remedy="leave it out"
        )
    if not traced and part.rate_per_s is None:
        raise document.error(
            ("prompts", "rate_per_s"),
            "the field is missing",
            remedy="give prompts per second, for instance 20",
        )
    if traced and isinstance(part.tokens, TokensPart):
        raise document.error(
            ("prompts", "tokens"), "must name the file of the trace",
            remedy="a CSV file with the columns arrival_s and tokens",
        )  # fmt: skip
    if (part.rate_per_s or 0.0) * file.seconds > PLAYED_MOST:
        raise document.error(
            ("prompts", "rate_per_s"), f"makes more than {PLAYED_MOST:,} prompts", value=part.rate_per_s,
            remedy="simulate fewer seconds",
        )  # fmt: skip
    return _process(document, part, base)


def _process(document: Document, part: PromptsPart, base: str) -> PromptProcess:
    if isinstance(part.tokens, TokensPart):
        if part.tokens.max < part.tokens.min:
            raise document.error(
                ("prompts", "tokens", "max"), f"is less than min, {part.tokens.min}", value=part.tokens.max,
                remedy="exchange them",
            )  # fmt: skip
        return PromptProcess(
            part.process, part.rate_per_s or 0.0, part.tokens.min, part.tokens.max, slo_ttft_ms=part.slo_ttft_ms,
            burst=part.burst,
        )  # fmt: skip
    path = os.path.join(base, part.tokens)  # noqa: PTH118
    if part.process == "trace":
        return PromptProcess("trace", traced=load_trace(path), slo_ttft_ms=part.slo_ttft_ms)
    return PromptProcess(
        part.process,
        part.rate_per_s or 0.0,
        lengths=load_lengths(path),
        slo_ttft_ms=part.slo_ttft_ms,
        burst=part.burst,
    )
