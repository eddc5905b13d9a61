"""``unidle fill bench``: load on an endpoint, and the times of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from unidle.cli.common import JsonOption, print_json, say
from unidle.errors import BadInput, JobFailed
from unidle.words import counted

UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", show_default=False, help="Endpoint, such as http://127.0.0.1:8000/v1.")
]
ModelOption = Annotated[
    str, typer.Option("--model", metavar="NAME", show_default=False, help="Model to request.")
]
RequestsOption = Annotated[int, typer.Option("--requests", metavar="N", min=1, help="Requests in all.")]
StreamsOption = Annotated[
    int, typer.Option("--streams", metavar="N", min=1, help="Requests at a time (closed loop).")
]
RateOption = Annotated[
    float | None,
    typer.Option("--rate", metavar="N", min=0.001, show_default=False, help="Requests a second that arrive at random (open loop)."),
]  # fmt: skip
TokensOption = Annotated[
    int, typer.Option("--max-tokens", metavar="N", min=1, help="Most tokens of each answer.")
]
PromptOption = Annotated[str, typer.Option("--prompt", metavar="TEXT", help="Prompt of each request.")]


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """In milliseconds; None where there is nothing."""
    from unidle.fill.cli.output import quantile_ns

    whole = [int(value * 1e9) for value in seconds]
    parts = {part: quantile_ns(whole, int(part[1:]) / 100) for part in ("p50", "p90", "p99")}
    return {part: None if ns is None else ns / 1e6 for part, ns in parts.items()}


def bench(
    url: UrlArgument,
    model: ModelOption,
    requests: RequestsOption = 100,
    streams: StreamsOption = 10,
    rate: RateOption = None,
    max_tokens: TokensOption = 32,
    prompt: PromptOption = "The quick brown fox",
    as_json: JsonOption = False,
) -> None:
    """Measure an endpoint of OpenAI's form under load.

    Streaming completions are sent; times to the first token and per token are printed."""
    import asyncio

    from unidle.fill.serve.load import EndpointLoad, run_load

    if not url.startswith("http://"):
        remedy = "name the endpoint's base, such as http://127.0.0.1:8000/v1"
        raise BadInput("must begin with http://", field="URL", value=url, remedy=remedy)
    found = asyncio.run(run_load(EndpointLoad(url, model, prompt, requests, max_tokens, streams, rate)))
    times = {"ttft_ms": _percentiles(found.ttft_s), "tpot_ms": _percentiles(found.tpot_s)}
    shown = {
        **times, "answered": len(found.ttft_s), "failed": len(found.errors), "tokens": found.tokens, "seconds": found.seconds,
        "tokens_per_s": found.tokens / found.seconds,
    }  # fmt: skip
    if as_json:
        print_json(shown | {"errors": found.errors[:10]})
    else:
        say(
            f"{len(found.ttft_s):,} answered, {len(found.errors):,} failed; {found.tokens:,} tokens in {found.seconds:,.2f} s"
        )
        for name, what in (("ttft_ms", "Time to first token"), ("tpot_ms", "Time per token")):
            parts = [f"{part} {value:,.2f} ms" for part, value in times[name].items() if value is not None]
            say(f"{what}: {', '.join(parts)}")
    if found.errors:
        text = f"{counted(len(found.errors), 'request')} failed"
        raise JobFailed(text, value=found.errors[0], remedy="see the server's log")
