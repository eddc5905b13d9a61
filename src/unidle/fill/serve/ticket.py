"""A request on its way: its tokens become text, and text reaches the client that waits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from unidle.fill.serve.http.errors import ApiError
from unidle.fill.serve.router import Route
from unidle.fill.serve.text.stops import StopFilter
from unidle.fill.serve.text.tokenizer import TokenStream
from unidle.fill.serve.wire import Submit, Token

_HIDDEN_END: Final = "stop"


@dataclass(slots=True)
class AnswerPart:
    """What a token adds to a sample: text that can be shown, the token where log probabilities were requested, and the end."""

    sample: int
    text: str
    token: Token | None = None
    end: str = ""


@dataclass(slots=True)
class _Sample:
    stream: TokenStream
    stops: StopFilter
    ended: bool = False


@dataclass(slots=True)
class Times:
    """Of one request, in seconds of the monotonic clock; 0 for what has not happened."""

    arrived: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    first: float = 0.0
    last: float = 0.0


class OpenRequest:
    """One request. ``feed`` is called for each of its tokens; one reader awaits ``parts``."""

    def __init__(self, submit: Submit, samples: list[tuple[TokenStream, StopFilter]], route: Route) -> None:
        self.submit = submit
        self.route: Route = route
        self.times = Times()
        self.tokens = 0
        self.worker_left = submit.samples  # samples that the worker has not completed
        self.unread_since = 0.0
        self.reader: asyncio.Task[object] | None = None  # what sends the answer
        self._samples = [_Sample(stream, stops) for stream, stops in samples]
        self._parts = list[AnswerPart]()
        self._error: ApiError | None = None
        self._wake: asyncio.Future[None] | None = None

    @property
    def id(self) -> int:
        return self.submit.id

    @property
    def done(self) -> bool:
        """All samples are complete, or it failed."""
        return self._error is not None or all(sample.ended for sample in self._samples)

    def feed(self, token: Token, now_s: float) -> bool:
        """Take a token; one after a sample's end is dropped. True if the sample has ended now, and its worker does not know it."""
        sample = self._samples[token.sample]
        if sample.ended or self._error is not None:
            return False
        self.tokens += 1
        self.times.first = self.times.first or now_s
        self.times.last = now_s
        if token.end == _HIDDEN_END:
            text, shown = "", None
        else:
            text = sample.stops.feed(sample.stream.feed(token.token))
            shown = token if self.submit.sampling.top is not None else None
        end = token.end
        if not sample.stops.hit and end:
            text += sample.stops.feed(sample.stream.rest())
            text += sample.stops.rest()
        if sample.stops.hit:
            end = "stop"
        sample.ended = bool(end)
        self.worker_left -= sample.ended
        if text or shown or end:
            self._parts.append(AnswerPart(token.sample, text, shown, end))
            self._notify(now_s)
        return sample.ended and not token.end

    def fail(self, error: ApiError) -> None:
        """End it with an error, unless it is complete."""
        if not self.done:
            self._error = error
            self._notify(time.monotonic())

    async def parts(self) -> list[AnswerPart]:
        """All parts that are there, at least one; empty at the end. Errors: the :class:`ApiError` of the request."""
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self.done:
                return []
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        found, self._parts = self._parts, []
        self.unread_since = 0.0
        return found

    def _notify(self, now_s: float) -> None:
        self.unread_since = self.unread_since or now_s
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
