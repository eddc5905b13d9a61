"""Load on an endpoint of OpenAI's form by a lean client: raw HTTP, no parsing of what is not measured."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import msgspec

_USAGE: Final = re.compile(rb'"completion_tokens":\s*(\d+)')
_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """``streams``: requests at a time (closed loop), or ``rate_per_s``: arrivals of a Poisson process (open loop)."""

    url: str
    model: str
    prompt: str
    requests: int
    tokens: int
    streams: int = 1
    rate_per_s: float | None = None
    seed: int = 0
    key: str | None = None

    def head_and_body(self, number: int) -> bytes:
        """The request as it is sent."""
        where = urlsplit(self.url)
        body = msgspec.json.encode({
            "model": self.model, "prompt": self.prompt, "max_tokens": self.tokens, "stream": True, "seed": self.seed + number,
            "stream_options": {"include_usage": True},
        })  # fmt: skip
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        head = (
            f"POST {where.path.rstrip('/')}/completions HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n{key}"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


@dataclass(slots=True)
class LoadResult:
    """Seconds of each request that was answered, tokens of all, and the errors."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    tokens: int = 0
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0


async def run_load(load: EndpointLoad) -> LoadResult:
    """Send all requests. Errors of single ones are in the result."""
    result = LoadResult()
    begin = time.perf_counter()
    if load.rate_per_s is None:
        numbers = iter(range(load.requests))
        await asyncio.gather(
            *(_worker(load, numbers, result) for _ in range(min(load.streams, load.requests)))
        )
    else:
        await _open_loop(load, load.rate_per_s, result)
    result.seconds = time.perf_counter() - begin
    return result


async def _worker(load: EndpointLoad, numbers: Iterator[int], result: LoadResult) -> None:
    for number in numbers:
        await _one(load, number, result)


async def _open_loop(load: EndpointLoad, rate: float, result: LoadResult) -> None:
    drawn = random.Random(load.seed)
    at = begin = time.perf_counter()
    tasks = []
    for number in itertools.islice(itertools.count(), load.requests):
        await asyncio.sleep(max(at - time.perf_counter(), 0.0))
        tasks.append(asyncio.create_task(_one(load, number, result)))
        at += drawn.expovariate(rate)
    assert at >= begin
    await asyncio.gather(*tasks)


async def _one(load: EndpointLoad, number: int, result: LoadResult) -> None:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await _request(load, number, result)
    except (OSError, TimeoutError, ValueError) as error:
        result.errors.append(str(error) or type(error).__name__)


async def _request(load: EndpointLoad, number: int, result: LoadResult) -> None:
    where = urlsplit(load.url)
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection(where.hostname, where.port or 80)
    first = last = 0.0
    end = head = b""
    try:
        writer.write(load.head_and_body(number))
        while received := await reader.read(1 << 16):
            now = time.perf_counter()
            head = head or received
            if b'"choices":[{' in received:
                first, last = first or now, now
            end = (end + received)[-4096:]
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    usage = _USAGE.search(end)
    if b" 200 " not in head[:16] or usage is None or b"[DONE]" not in end:
        raise ValueError(f"no whole answer: {(head if b' 200 ' not in head[:16] else end)[-200:]!r}")
    tokens = int(usage[1])
    result.tokens += tokens
    result.ttft_s.append((first or time.perf_counter()) - begin)
    if tokens > 1:
        result.tpot_s.append((last - first) / (tokens - 1))
