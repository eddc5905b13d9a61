"""``unidle fill serve``: an OpenAI-compatible server of a model, whose prefill can run in bubbles of training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.cli.common import StoreOption
from unidle.cli.option_set import with_options
from unidle.errors import BadInput, CannotRun

if TYPE_CHECKING:
    from unidle.fill.serve.job_fillers import JobFilling
    from unidle.fill.serve.server import ServeOptions

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """Options in the order of the help."""

    # fmt: off
    model: Annotated[
        Path, typer.Option("--model", metavar="DIR", show_default=False, help="Model in the form of Hugging Face: Llama or GPT-2, safetensors.")
    ]
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="TCP port; 0: any free one.")] = 8000
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1"
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", show_default=False, help="Name of the model in requests; default: that of its directory.")
    ] = None
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="DEVICE", show_default=False, help="Dedicated device: cpu, cuda:0. Repeat it for more; default: cpu."),
    ] = None
    dtype: Annotated[
        str | None, typer.Option("--dtype", metavar="TYPE", show_default=False, help="float32, bfloat16 or float16; default: the model's own.")
    ] = None
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", min=1, show_default=False, help="CPU threads of each worker.")] = None
    bubbles: Annotated[
        Path | None,
        typer.Option("--bubbles", metavar="SOCKET", show_default=False, help="Unix socket for fillers that prefill in bubbles of training."),
    ] = None
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", show_default=False, help="Job on this machine in whose waits prompts are prefilled.")
    ] = None
    store: StoreOption = None
    wait_s: Annotated[float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long to wait for ranks that show waits.")] = 60.0
    piece_ms: Annotated[
        float, typer.Option("--piece-ms", metavar="MS", min=0.1, max=1000, help="Longest piece of prefill in a wait of --job.")
    ] = 10.0
    trial: Annotated[
        bool, typer.Option("--trial/--no-trial", help="At first, prefill only in every second block of steps of --job, until its effect is known.")
    ] = True
    kv_tokens: Annotated[
        int | None,
        typer.Option("--kv-tokens", metavar="N", min=16, show_default=False, help="Tokens in the cache of each device; default: 8 contexts."),
    ] = None
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Most answers generated at a time, on each device.")] = 64
    chunk_tokens: Annotated[int, typer.Option("--chunk-tokens", metavar="N", min=1, help="Tokens of a chunk of prefill.")] = 256
    most_waiting: Annotated[int, typer.Option("--most-waiting", metavar="N", min=1, help="Requests that may wait; more are refused.")] = 1024
    slo_ttft: Annotated[
        float, typer.Option("--slo-ttft", metavar="SECONDS", min=0.001, help="Limit of the time to the first token, for the choice of a route.")
    ] = 3.0
    drain: Annotated[float, typer.Option("--drain", metavar="SECONDS", min=0, help="Time for requests that run, after SIGTERM.")] = 30.0
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", metavar="FILE", show_default=False, help="File with the key that clients must send; default: no check."),
    ] = None
    # fmt: on


@with_options(options=ServeCommand)
def serve(options: ServeCommand) -> None:
    """Serve a model by OpenAI's API: completions, chat, models. Prompts are prefilled in bubbles of training where fillers are
    connected and in time, else on dedicated devices, which also generate the answers."""
    _check(options.model, options.dtype)
    found = _options(options)
    from unidle.cli.common import say
    from unidle.fill.serve.server import serve as serve_model

    serve_model(found, say)


def _check(model: Path, dtype: str | None) -> None:
    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise BadInput(
            "is not a choice", field="--dtype", value=dtype, remedy="use float32, bfloat16 or float16"
        )
    if not model.is_dir():
        raise BadInput(
            "is not a directory", field="--model", value=str(model), remedy="name the directory of a model"
        )
    try:
        import jinja2  # noqa: F401
        import safetensors  # noqa: F401
        import starlette  # noqa: F401
        import tokenizers  # noqa: F401
        import uvicorn  # noqa: F401
        import uvloop  # noqa: F401
    except ImportError as error:
        raise CannotRun(f"the server needs {error.name}", remedy="pip install 'unidle[fill]'") from error


def _options(given: ServeCommand) -> ServeOptions:
    from unidle.fill.serve.model.config import read_config
    from unidle.fill.serve.server import ServeOptions
    from unidle.fill.serve.workers import WorkerOptions

    tokens = given.kv_tokens or 8 * read_config(given.model).context
    blocks = max(tokens // _BLOCK, 1)
    worker = WorkerOptions(
        given.model, given.dtype, given.threads, blocks, _BLOCK, given.batch, given.chunk_tokens
    )
    return ServeOptions(
        name=given.name or given.model.resolve().name, host=given.host, port=given.port, devices=given.device or ["cpu"],
        worker=worker, most_waiting=given.most_waiting, slo_s=given.slo_ttft, drain_s=given.drain,
        bubbles=given.bubbles, filling=None if given.job is None else _filling(given), key=_key(given.api_key_file),
    )  # fmt: skip


def _filling(given: ServeCommand) -> JobFilling:
    """Once the ranks of the job show their waits, and no other filler is next to them. Errors: BadInput, CannotRun."""
    from unidle.cli.common import need_job, read_store, read_view
    from unidle.fill.cli.job_ranks import JobRanks, alone, directory_of
    from unidle.fill.serve.job_fillers import JobFilling

    opened = read_store(given.store)
    job = need_job(read_view(opened), given.job).id
    JobRanks(opened, job, None, False, given.wait_s, lambda: False).following()
    with alone(directory_of(opened, job), job):
        return JobFilling(job, given.store, given.piece_ms, given.trial)


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        found = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot be read: {error}", field="--api-key-file", value=str(file), remedy="name a text file"
        ) from error
    if not found:
        raise BadInput("is empty", field="--api-key-file", value=str(file), remedy="write the key into it")
    return found
