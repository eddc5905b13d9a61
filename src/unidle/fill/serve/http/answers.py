"""The bodies of answers: whole ones, and the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from unidle.fill.serve.http.wanted import Wanted
from unidle.fill.serve.text.tokenizer import TextTokenizer
from unidle.fill.serve.ticket import AnswerPart
from unidle.fill.serve.wire import Token

DONE: Final = b"data: [DONE]\n\n"
_encode: Final = msgspec.json.encode
_MOST_TEXT: Final = -9999.0


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    end: str = ""


class Answer:
    """The answer to one request: ``take`` parts, then ``body``; or ``chunks`` of each part, then ``last``. Choices are by prompt, then sample."""

    def __init__(self, wanted: Wanted, model: str, tokenizer: TextTokenizer) -> None:
        self._wanted = wanted
        self._tokenizer = tokenizer
        kind = "chatcmpl" if wanted.chat else "cmpl"
        name = "chat.completion" if wanted.chat else "text_completion"
        self.head = {
            "id": f"{kind}-{secrets.token_hex(12)}",
            "object": name,
            "created": int(time.time()),
            "model": model,
        }
        self._choices = [_Choice() for _ in range(len(wanted.prompts) * wanted.samples)]
        self._offsets = [len(text) for text in wanted.echo for _ in range(wanted.samples)]
        if wanted.chat and wanted.stream:
            self.head["object"] = "chat.completion.chunk"
        self._begin = b"data: " + _encode(self.head)[:-1] + b',"choices":[{"index":'
        self._usage = b',"usage":null}\n\n' if wanted.include_usage else b"}\n\n"

    def take(self, index: int, part: AnswerPart) -> None:
        """Add a part to a choice."""
        choice = self._choices[index]
        choice.text.append(part.text)
        if part.token is not None:
            choice.tokens.append(part.token)
        choice.end = part.end or choice.end

    def body(self, tokens: int) -> bytes:
        """The whole answer; ``tokens`` were generated."""
        choices = []
        for index, choice in enumerate(self._choices):
            text = self._wanted.echo[index // self._wanted.samples] + "".join(choice.text)
            logged = self._logged(index, choice.tokens)
            shown: dict[str, Any] = {"index": index, "logprobs": logged, "finish_reason": choice.end}
            if self._wanted.chat:
                shown["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                shown["text"] = text
            choices.append(shown)
        return _encode(self.head | {"choices": choices, "usage": self.usage(tokens)})

    def usage(self, tokens: int) -> dict[str, int]:
        prompt = sum(map(len, self._wanted.prompts))
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}

    def first(self) -> bytes:
        """What a stream begins with: roles, or the prompts that are echoed."""
        found = []
        for index in range(len(self._choices)):
            echo = self._wanted.echo[index // self._wanted.samples]
            if self._wanted.chat:
                found.append(
                    self._chunk(index, b'"delta":{"role":"assistant","content":""}', b"null", b"null")
                )
            elif echo:
                found.append(self._chunk(index, b'"text":' + _encode(echo), b"null", b"null"))
        return b"".join(found)

    def chunk(self, index: int, part: AnswerPart) -> bytes:
        """One part of a stream."""
        logged = b"null" if part.token is None else _encode(self._logged(index, [part.token]))
        end = _encode(part.end) if part.end else b"null"
        text = _encode(part.text)
        if not self._wanted.chat:
            return self._chunk(index, b'"text":' + text, logged, end)
        if not part.end:
            return self._chunk(index, b'"delta":{"content":' + text + b"}", logged, end)
        before = (
            self._chunk(index, b'"delta":{"content":' + text + b"}", logged, b"null")
            if part.text or part.token
            else b""
        )
        return before + self._chunk(index, b'"delta":{}', b"null", end)

    def last(self, tokens: int) -> bytes:
        """The end of a stream."""
        if not self._wanted.include_usage:
            return DONE
        return b"data: " + _encode(self.head | {"choices": [], "usage": self.usage(tokens)}) + b"\n\n" + DONE

    def _chunk(self, index: int, content: bytes, logged: bytes, end: bytes) -> bytes:
        return b'%b%d,%b,"logprobs":%b,"finish_reason":%b}]%b' % (
            self._begin,
            index,
            content,
            logged,
            end,
            self._usage,
        )

    def _logged(self, index: int, tokens: list[Token]) -> dict[str, Any] | None:
        if self._wanted.sampling.top is None:
            return None
        if self._wanted.chat:
            return {"content": [self._entry(one.token, one.logprob) | {"top_logprobs": [self._entry(*other) for other in one.top]} for one in tokens],
                    "refusal": None}  # fmt: skip
        names = [self._name(one.token) for one in tokens]
        offsets = []
        for name in names:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(name)
        return {
            "tokens": names,
            "token_logprobs": [_finite(one.logprob) for one in tokens],
            "top_logprobs": [
                {self._name(token): _finite(value) for token, value in one.top} for one in tokens
            ],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        return self._tokenizer.bytes_of(token).decode("utf-8", "replace")

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        own = self._tokenizer.bytes_of(token)
        return {"token": own.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(own)}


def _finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI's API writes -9999 for it."""
    return max(logprob, _MOST_TEXT)
