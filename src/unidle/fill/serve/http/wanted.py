"""What a request means: prompts as tokens, how to choose tokens, what to send back."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from unidle.fill.serve.http.bodies import (
    MOST_SAMPLES,
    MOST_STOPS,
    ChatBody,
    CompletionBody,
    SharedBody,
    decoded,
)
from unidle.fill.serve.http.errors import ApiError, bad
from unidle.fill.serve.text.chat import ChatTemplate
from unidle.fill.serve.text.tokenizer import TextTokenizer
from unidle.fill.serve.wire import Sampling

_DEFAULT_TOKENS: Final = 16
"""OpenAI's default of ``/v1/completions``."""
_GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that is valid. ``prompts``: tokens of each; ``echo``: the text to begin each answer with, for each prompt."""

    chat: bool
    prompts: list[list[int]]
    echo: list[str]
    most: int
    samples: int
    sampling: Sampling
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


class ModelFacts(Protocol):
    """``name``: as requests name it; ``vocabulary``: tokens that the model has."""

    name: str
    context: int
    vocabulary: int


class RequestReader:
    """Reads bodies for one model."""

    def __init__(self, facts: ModelFacts, tokenizer: TextTokenizer, template: ChatTemplate) -> None:
        self._facts = facts
        self._tokenizer = tokenizer
        self._template = template

    def completion(self, raw: bytes) -> Wanted:
        """``POST /v1/completions``. Errors: :class:`ApiError`."""
        body = decoded(raw, CompletionBody)
        self._check_model(body.model)
        samples = body.n or 1
        if body.best_of is not None and body.best_of != samples:
            raise bad("'best_of' is not supported: leave it out, or give it the value of 'n'.", "best_of")
        if body.echo and body.logprobs is not None:
            raise bad(
                "'echo' together with 'logprobs' is not supported: log probabilities of the prompt are not kept.",
                "echo",
            )
        prompts, texts = self._prompts(body.prompt)
        if len(prompts) * samples > MOST_SAMPLES:
            raise bad(
                f"'n' times the number of prompts must be at most {MOST_SAMPLES}.", "n", "invalid_value"
            )
        most = body.max_tokens if body.max_tokens is not None else _DEFAULT_TOKENS
        self._check_length(max(map(len, prompts)), most, "prompt")
        return self._wanted(body, prompts, texts if body.echo else [""] * len(prompts), most, body.logprobs)

    def chat(self, raw: bytes) -> Wanted:
        """``POST /v1/chat/completions``. Errors: :class:`ApiError`."""
        body = decoded(raw, ChatBody)
        self._check_model(body.model)
        if not self._template.present:
            raise bad("This model has no chat template: use /v1/completions.", "messages")
        if body.top_logprobs is not None and not body.logprobs:
            raise bad("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
        messages = [
            {"role": one.role, "content": _text(one.content, f"messages[{at}]")}
            for at, one in enumerate(body.messages)
        ]
        self._check_text(sum(len(one["content"]) for one in messages), "messages")
        try:
            text = self._template.render(messages)
        except ValueError as error:
            raise bad(f"The chat template refuses these messages: {error}", "messages") from error
        tokens = self._tokens(text, "messages", special=False)
        left = self._facts.context - len(tokens)
        most = body.max_completion_tokens or body.max_tokens or max(left, 1)
        self._check_length(len(tokens), most, "messages")
        return self._wanted(body, [tokens], [""], most, (body.top_logprobs or 0) if body.logprobs else None)

    def _wanted(
        self, body: SharedBody, prompts: list[list[int]], echo: list[str], most: int, top: int | None
    ) -> Wanted:
        temperature = 1.0 if body.temperature is None else body.temperature
        if body.stream_options is not None and not body.stream:
            raise bad("'stream_options' needs 'stream': true.", "stream_options")
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        if not all(stops):
            raise bad("A stop string must not be empty.", "stop", "invalid_value")
        sampling = Sampling(
            0.0 if temperature < _GREEDY_BELOW else temperature, 1.0 if body.top_p is None else body.top_p,
            secrets.randbits(62) if body.seed is None else body.seed, top,
        )  # fmt: skip
        return Wanted(
            isinstance(body, ChatBody), prompts, echo, most, body.n or 1, sampling, tuple(stops[:MOST_STOPS]),
            bool(body.stream), bool(body.stream_options and body.stream_options.include_usage),
        )  # fmt: skip

    def _check_model(self, name: str) -> None:
        if name != self._facts.name:
            raise ApiError(
                404, f"The model '{name}' does not exist; this server has '{self._facts.name}'.", param="model", code="model_not_found"
            )  # fmt: skip

    def _prompts(self, given: object) -> tuple[list[list[int]], list[str]]:
        """Tokens and text of each prompt."""
        if given is None:
            raise bad("Missing required parameter: 'prompt'.", "prompt", "missing_required_parameter")
        listed = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
        if not 1 <= len(listed) <= MOST_SAMPLES:
            raise bad(f"There must be 1 to {MOST_SAMPLES} prompts.", "prompt", "invalid_value")
        prompts, texts = [], []
        for one in listed:
            if isinstance(one, str):
                self._check_text(len(one), "prompt")
                prompts.append(self._tokens(one, "prompt", special=True))
                texts.append(one)
            elif isinstance(one, list):
                prompts.append(self._given_tokens(one))
                texts.append(self._tokenizer.decode(prompts[-1]))
            else:
                raise bad("A prompt must be a string or a list of tokens.", "prompt", "invalid_type")
        return prompts, texts

    def _given_tokens(self, given: list[object]) -> list[int]:
        tokens = [
            one
            for one in given
            if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < self._facts.vocabulary
        ]
        if len(tokens) != len(given):
            raise bad(
                f"Tokens must be whole numbers from 0 to {self._facts.vocabulary - 1}.",
                "prompt",
                "invalid_value",
            )
        if not tokens:
            raise bad("A prompt must have at least one token.", "prompt", "invalid_value")
        return tokens

    def _tokens(self, text: str, param: str, *, special: bool) -> list[int]:
        tokens = self._tokenizer.encode(text, special=special)
        if not tokens:
            raise bad("A prompt must have at least one token.", param, "invalid_value")
        if max(tokens) >= self._facts.vocabulary:
            raise bad("The tokenizer has tokens that the model does not have.", param)
        return tokens

    def _check_text(self, characters: int, param: str) -> None:
        """Refuse text that is too long however it is cut into tokens, before it is cut."""
        least = characters // self._tokenizer.longest
        if least > self._facts.context:
            raise self._too_long(f"at least {least}", 0, param)

    def _check_length(self, tokens: int, most: int, param: str) -> None:
        if tokens + most > self._facts.context:
            raise self._too_long(str(tokens), most, param)

    def _too_long(self, tokens: str, most: int, param: str) -> ApiError:
        return bad(
            f"This model's maximum context length is {self._facts.context} tokens. However, you requested {tokens} tokens in the {param}"
            f" and {most} in the completion. Please reduce either.",
            param, "context_length_exceeded",
        )  # fmt: skip


def _text(content: str | Sequence[object], place: str) -> str:
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if getattr(part, "type", None) != "text":
            raise bad("Only parts of type 'text' are supported.", f"{place}.content", "invalid_value")
        parts.append(str(getattr(part, "text", "")))
    return "".join(parts)
