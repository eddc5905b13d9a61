"""Prefill and decoding of all requests of one worker: the policy of :mod:`batching` carried out on a model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from unidle.errors import BadInput
from unidle.fill.serve.batching import Batcher, Begun, Decode, PromptChunk, Sizes
from unidle.fill.serve.kv.cache import DecodeAttention, PagedCache
from unidle.fill.serve.kv.pool import BlockPool
from unidle.fill.serve.model.causal import CausalModel
from unidle.fill.serve.prefill import PromptPrefill
from unidle.fill.serve.sampling import ChosenToken, choose
from unidle.fill.serve.wire import Report, Submit, Token

LOGITS: Final = "logits"
KV: Final = "kv"


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """``blocks`` of ``block_tokens`` in the cache, ``batch`` sequences at a time, ``chunk_tokens`` of the chunk plan."""

    blocks: int
    block_tokens: int = 16
    batch: int = 64
    chunk_tokens: int = 256


@dataclass(slots=True)
class _Sample:
    """One sequence: how its tokens are drawn, and those so far."""

    temperature: float
    top_p: float
    top: int | None
    random: random.Random
    answer: list[int] = field(default_factory=list)

    def number(self) -> float:
        return self.random.random()


@dataclass(slots=True)
class _Request:
    submit: Submit
    samples: list[_Sample]
    prefill: PromptPrefill | None = None


class Generator:
    """``submit`` and ``cancel`` requests; ``step`` does one step and returns what happened. One thread."""

    def __init__(
        self, model: CausalModel, limits: WorkerLimits, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.limits = limits
        self._model = model
        self._device = device
        self._cache = PagedCache(model.config, limits.blocks, limits.block_tokens, device, dtype)
        self.batcher = Batcher(BlockPool(limits.blocks), limits.block_tokens, limits.batch)
        self._requests = dict[int, _Request]()
        self._failed = list[tuple[int, str]]()

    @property
    def busy(self) -> bool:
        return bool(self._requests or self._failed)

    def submit(self, submit: Submit) -> None:
        """Queue a request. One that this worker can never hold fails, in the next report."""
        sizes = Sizes(len(submit.tokens), len(submit.tokens) + submit.most, submit.samples)
        if not self.batcher.fits_ever(sizes):
            self._fail(
                submit,
                f"needs {self.batcher.blocks_of(sizes)} blocks for each of {submit.samples} samples, more than there are",
            )
            return
        how = submit.sampling
        samples = [
            _Sample(how.temperature, how.top_p, how.top, random.Random(f"{how.seed}/{sample}"))
            for sample in range(submit.samples)
        ]
        self._requests[submit.id] = _Request(submit, samples)
        self.batcher.add(submit.id, sizes)

    def cancel(self, request: int, sample: int | None = None) -> None:
        """Forget a request or one of its samples, known or not."""
        if sample is not None and self.batcher.cancel_sample(request, sample):
            return
        self.batcher.cancel(request)
        if (known := self._requests.pop(request, None)) is not None and known.submit.handoff:
            Path(known.submit.handoff).unlink(missing_ok=True)

    @torch.inference_mode()
    def step(self) -> Report:
        """One chunk of prefill, or one token of each sequence."""
        begun = self.batcher.begin()
        tokens = list[Token]()
        match self.batcher.next_step():
            case PromptChunk(request):
                self._guarded(request, tokens)
            case Decode(rows):
                tokens = self._decode(rows)
        failed, self._failed = self._failed, []
        return Report(
            tokens,
            [one.id for one in begun],
            failed,
            self.batcher.waiting,
            self.batcher.running,
            self.batcher.pool.used,
        )

    def _guarded(self, request: Begun, tokens: list[Token]) -> None:
        """A chunk of one request; a hand-off that cannot be read is the failure of that request alone."""
        try:
            tokens += self._chunk(request)
        except (OSError, BadInput) as error:
            self._fail(self._requests[request.id].submit, str(error))

    def _fail(self, submit: Submit, why: str) -> None:
        self.cancel(submit.id)
        if submit.handoff:
            Path(submit.handoff).unlink(missing_ok=True)
        self._failed.append((submit.id, why))

    def _chunk(self, request: Begun) -> list[Token]:
        own = self._requests[request.id]
        if own.submit.handoff:
            logits = self._taken(request, own.submit)
        else:
            if own.prefill is None:
                own.prefill = PromptPrefill(
                    self._model, self._cache, request.tables[0], own.submit.tokens, self.limits.chunk_tokens
                )
            own.prefill.run_chunk()
            if own.prefill.logits is None:
                return []
            logits = own.prefill.logits
        own.prefill = None
        for table in request.tables[1:]:
            self._cache.copy(request.tables[0], table)
        self.batcher.prefilled(request.id)
        chosen = choose(logits.expand(len(own.samples), -1), own.samples)
        return [self._took(request, sample, choice) for sample, choice in enumerate(chosen)]

    def _taken(self, request: Begun, submit: Submit) -> torch.Tensor:
        """Read what was prefilled elsewhere. Errors: BadInput, OSError."""
        file = Path(str(submit.handoff))
        try:
            found = load_file(file)
            kv, logits = found[KV], found[LOGITS]
            if (
                kv.shape[2] != len(submit.tokens)
                or kv.shape[0] != self._cache.kv.shape[0]
                or kv.shape[3:] != self._cache.kv.shape[4:]
            ):
                raise BadInput(
                    f"has keys and values of shape {list(kv.shape)}",
                    field="handoff",
                    value=file.name,
                    remedy="use one model",
                )
        except (KeyError, ValueError, RuntimeError) as error:
            raise BadInput(
                f"cannot be read: {error}", field="handoff", value=file.name, remedy="try again"
            ) from error
        finally:
            file.unlink(missing_ok=True)
        self._cache.write(request.tables[0], kv)
        return logits.to(self._device)

    def _decode(self, rows: list[tuple[Begun, int]]) -> list[Token]:
        samples = [self._requests[request.id].samples[sample] for request, sample in rows]
        lengths = [
            request.sizes.prompt + len(sample.answer)
            for (request, _), sample in zip(rows, samples, strict=True)
        ]  # of each sequence with its last token, whose keys and values this step stores
        tokens = torch.tensor([sample.answer[-1] for sample in samples], device=self._device)
        state = self._model.begin(tokens, torch.tensor(lengths, device=self._device) - 1)
        attend = DecodeAttention(self._cache, [request.tables[sample] for request, sample in rows], lengths)
        for layer in range(self._model.config.layers):
            self._model.layer(layer, state, attend)
        chosen = choose(self._model.logits(state.x), samples)
        return [
            self._took(request, sample, choice)
            for (request, sample), choice in zip(rows, chosen, strict=True)
        ]

    def _took(self, request: Begun, sample: int, choice: ChosenToken) -> Token:
        own = self._requests[request.id]
        answer = own.samples[sample].answer
        answer.append(choice.token)
        end = (
            "stop"
            if choice.token in own.submit.stop_tokens
            else "length"
            if len(answer) >= own.submit.most
            else ""
        )
        if end:
            self.batcher.ended(request.id, sample)
            if not request.live:
                del self._requests[request.id]
        return Token(request.id, sample, choice.token, end, choice.logprob, list(choice.top))
