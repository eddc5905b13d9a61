"""``unidle span profile``: what each layer of a real model takes, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, figures, print_json, say, show_table
from unidle.errors import BadInput, CannotRun
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.span.files.train_file import TrainPart
    from unidle.span.model.layers import Median, ModelProfile, ProfiledLayer

_DTYPES = ("float64", "float32", "bfloat16")


def profile(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL.py:BUILD|FILE|JOB", show_default=False,
            help="Function that returns the model, span file with a train section, or a job of `unidle span run`.",
        ),
    ],
    argument: Annotated[
        list[str] | None,
        typer.Option("--argument", metavar="NAME=VALUE", show_default=False, help="Argument of BUILD, as JSON or text; may be repeated."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", show_default=False, help="Function batch(step, index, size, seed) that returns input and target; default: batch in the file of BUILD."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", show_default=False, help="Function loss(output, target); default: loss in the file of BUILD, if there is one."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="|".join(_DTYPES), show_default=False, help="Type of the parameters; default: the file's, else float32."),
    ] = None,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="Optimizer of torch.optim, for the size of its state; or none.")
    ] = "adamw",
    microbatch: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10**6, show_default=False, help="Sequences per microbatch; default: the file's, else 1."),
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda:N", help="Device to measure on; auto: a GPU if there is one.")
    ] = "auto",
    threads: Annotated[
        int, typer.Option(metavar="N", min=0, max=4096, help="CPU threads per process; 0: PyTorch's default.")
    ] = 0,
    repeats: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Number of measurements, after three warm-up runs.")
    ] = 30,
    beside: Annotated[
        int, typer.Option("--parallel", "--beside", metavar="N", min=1, max=256, help="Processes that measure at the same time.")
    ] = 1,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of parameters and data.")] = 0,
    write: Annotated[
        str | None,
        typer.Option(metavar="FILE", show_default=False, help="Store the layers in this span file; the other fields stay unchanged."),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", "-s", metavar="PATH_OR_URL", show_default=False, help="Store of JOB; default: the stores of `unidle span run`."),
    ] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure time and bytes of each layer of a model. Forward pass, input gradient and weight gradient are separate.

    For a JOB, the figures are of each stage, from what its ranks recorded. The job may still run.

    Exit codes: 0 measured; 2 bad input or an error in the model's code; 3 the model cannot be cut, or does not fit here.
    """
    from unidle.span.files.rewrite import check_file, store_profile
    from unidle.span.model.layers import profile_of

    if (place := _job_place(target, store)) is not None:
        from unidle.span.cli.profile_job import profile_job

        profile_job(target, place, write, as_json=as_json)
        return
    if dtype is not None and dtype not in _DTYPES:
        raise BadInput("is not a choice", field="--dtype", value=dtype, remedy=f"use one of {', '.join(_DTYPES)}")  # fmt: skip
    request = _request(target, _arguments(argument))
    request = replace(
        request, data=_path(data, "--data") or request.data, loss=_path(loss, "--loss") or request.loss,
        dtype=dtype or request.dtype, microbatch=microbatch or request.microbatch,
    )  # fmt: skip
    if write is not None:
        check_file(write)  # before minutes are spent
    asked = {
        **request.told(), "optimizer": optimizer, "device": device, "threads": threads, "repeats": repeats, "seed": seed,
    }  # fmt: skip
    found = profile_of(_measure(asked, beside))
    how = {
        "microbatch": request.microbatch, "device": found.device, "dtype": request.dtype, "optimizer": optimizer,
        "threads": found.threads, "repeats": repeats, "beside": beside,
    }  # fmt: skip
    if as_json:
        print_json(as_object(found, how))
    else:
        _show(found, how)
    if write is not None:
        store_profile(write, found, how)
        if not as_json:
            say(f"{write}: {counted(len(found.layers), 'layer')} stored")


def _job_place(target: str, store: str | None) -> Path | None:
    from unidle.span.cli.profile_job import place_of

    if os.sep in target or "." in target or Path(target).is_file():
        return None
    found = place_of(target, store)
    if found is None and store is not None:
        raise BadInput("the store has no job of `unidle span run` with this name", field="--store", value=target, remedy="`unidle list --store STORE` lists the jobs")  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class _Request:
    """What is to be built; paths are whole."""

    build: str
    arguments: dict[str, Any]
    data: str | None = None
    loss: str | None = None
    dtype: str = "float32"
    microbatch: int = 1

    def told(self) -> dict[str, Any]:
        return {
            "build": self.build, "arguments": self.arguments, "data": self.data, "loss": self.loss,
            "dtype": self.dtype, "microbatch": self.microbatch,
        }  # fmt: skip


def _request(target: str, arguments: dict[str, Any]) -> _Request:
    if build := _path(target, "TARGET") if ".py:" in target else None:
        return _Request(build, arguments)
    if target.endswith((".yaml", ".yml", ".json")) or os.sep in target or Path(target).is_file():
        return _from_file(target, arguments)
    what = f"process {target}" if target.isdigit() else f"job {target}"
    raise CannotRun(
        f"the layers of a process that runs cannot be distinguished from outside ({what}): equal blocks run the same"
        " line of Python, and the backward pass runs without any; of jobs of unidle span run the stages are known",
        remedy="measure the function that builds its model, MODEL.py:BUILD, with --parallel for what it shares its machine with;"
        f" `unidle profile {target}` shows where the time of the whole goes",
    )  # fmt: skip


def _from_file(path: str, arguments: dict[str, Any]) -> _Request:
    from unidle.files.check import convert
    from unidle.files.document import Bounds
    from unidle.files.load import base_dir_of, load_document
    from unidle.span.files.file import PlanFile

    document = load_document(path, what="span", bounds=Bounds())
    file = convert(document, PlanFile, what="span")
    if file.train is None:
        raise document.error(
            ("train",), "the field is missing", remedy="add train: {model: {build: model.py:function}}, or name MODEL.py:BUILD"
        )  # fmt: skip
    train: TrainPart = file.train
    base = base_dir_of(path)

    def whole(name: str | None) -> str | None:
        return None if name is None else str(Path(base, name).absolute())

    microbatch = file.model.microbatch if file.model else file.measured.microbatch if file.measured else 1
    model = train.model
    return _Request(
        whole(model.build) or "", {**model.arguments, **arguments}, whole(train.data), whole(train.loss), model.dtype, microbatch,
    )  # fmt: skip


def _path(name: str | None, field: str) -> str | None:
    """``FILE.py:FUNCTION`` with the whole path."""
    if name is None:
        return None
    file, _, function = name.rpartition(":")
    if not file.endswith(".py") or not function.replace(".", "_").isidentifier():
        raise BadInput(
            "is not FILE.py:FUNCTION", field=field, value=name, remedy="for instance model.py:build"
        )
    if not Path(file).is_file():
        raise BadInput("there is no such file", field=field, value=file, remedy="check the path")
    return f"{Path(file).absolute()}:{function}"


def _arguments(given: list[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise BadInput(
                "is not NAME=VALUE", field="--argument", value=text, remedy="for instance layers=12"
            )
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


# ---- the processes


def _measure(asked: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The output of each process; they begin to measure together. Errors: BadInput, CannotRun."""
    command = [sys.executable, "-P", "-m", "unidle.span.measure"]
    started = list[subprocess.Popen[str]]()
    try:
        for _ in range(count):
            started.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            _send(started[-1], json.dumps(asked))
        for process in started:
            _answer(process)
        for process in started:
            _send(process, "go")
        return [_answer(process)["result"] for process in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate()


def _send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended: its answer, or that there is none, says why


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        code = process.wait()
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise CannotRun(
            f"the process that measures {ended} before it could answer"
            + (": perhaps it ran out of memory" if code == -9 else ""),
            remedy="use a smaller --microbatch or fewer layers" if code == -9 else "see its output above",
        )
    told: dict[str, Any] = json.loads(line)
    if error := told.get("error"):
        raise (BadInput if error["kind"] == "input" else CannotRun)(
            error["problem"], field=error["field"], value=error["value"], remedy=error["remedy"]
        )
    return told


# ---- what is reported


def as_object(found: ModelProfile, how: dict[str, Any]) -> dict[str, Any]:
    """The profile for machines."""
    from unidle.span.files.rewrite import layer_data

    return {
        **how, "torch": found.torch, "loss": found.has_loss, "step_ns": _told(found.step), "sum_ns": found.sum_ns,
        "layers": [{**layer_data(each), "kind": each.kind, "split": each.split} for each in found.layers],
        "how": "measured",
    }  # fmt: skip


def _told(found: Median) -> dict[str, int]:
    return found._asdict()


def _show(found: ModelProfile, how: dict[str, Any]) -> None:
    say(
        f"{found.device}, {how['dtype']}, {counted(how['microbatch'], 'sequence')}, {counted(found.threads, 'thread')},"
        f" {counted(how['repeats'], 'repeat')}" + (f", {how['beside']} at once" if how["beside"] > 1 else "")
    )
    header = [
        "layer", "kind", "forward ms", "input grad ms", "weights ms", "± %", "input MB", "kept MB", "parameters MB",
        "optimizer MB",
    ]  # fmt: skip
    show_table(header, [_line(each) for each in found.layers])
    say()
    say(
        f"All layers {found.sum_ns / 1e6:,.3f} ms; the model uncut, forward and backward, {found.step.value / 1e6:,.3f} ms"
        f" ({found.step.low / 1e6:,.3f} to {found.step.high / 1e6:,.3f})."
    )
    if not 0.8 <= found.sum_ns / max(found.step.value, 1) <= 1.25:
        say(
            "The two differ: other programs had the device, or layers are so short that calls take most of it."
        )
    if not found.has_loss:
        say("No loss function: its time is not included (see --loss).")
    if apart := [each.layer.name for each in found.layers if not each.split]:
        say(f"Weight gradients computed as a difference, because they cannot run alone: {', '.join(apart)}.")
    say("All figures are measured: medians; ± is the half of the 95 % interval.")


def _line(each: ProfiledLayer) -> list[str]:
    layer, times = each.layer, (each.forward, each.backward, each.weight)
    whole = sum(found.value for found in times)
    spread = 50 * sum(found.high - found.low for found in times) / whole if whole else 0.0
    sizes = (layer.input_bytes, layer.kept_bytes, layer.parameters_bytes, layer.optimizer_bytes)
    return [
        layer.name, each.kind, *(f"{found.value / 1e6:.3f}" for found in times), f"{spread:.1f}",
        *(figures(size / 1e6) for size in sizes),
    ]  # fmt: skip
