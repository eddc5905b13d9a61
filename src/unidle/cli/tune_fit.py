"""``unidle tune fit``: whether a model fits a device, with the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unidle.cli.common import JsonOption, print_json, say, show_table
from unidle.cli.option_set import with_options
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.tune.fit.model import DecoderModel

_MOST = 1 << 20


FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE", show_default=False, help="Model file (`unidle schema model`), or a config.json of Hugging Face."
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TuneFitOptions:
    """Options in the order of the help."""

    # fmt: off
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, max=_MOST, help="Sequences on one device.")] = 1
    sequence: Annotated[int, typer.Option("--sequence", metavar="TOKENS", min=1, max=1 << 24, help="Length of a sequence.")] = 2048
    precision: Annotated[
        Literal["fp32", "bf16", "fp8", "int8", "int4"], typer.Option("--precision", help="Of weights and products; int8 and int4 only with --serve.")
    ] = "bf16"
    optimizer: Annotated[Literal["adamw", "momentum", "sgd"], typer.Option("--optimizer", metavar="NAME", help="adamw, momentum or sgd: whose state is kept, in FP32.")] = "adamw"
    recompute: Annotated[bool, typer.Option("--recompute", help="Keep only the inputs of layers, and compute the rest again.")] = False
    serve: Annotated[bool, typer.Option("--serve", help="Inference with a KV cache instead of training.")] = False
    tensor: Annotated[int, typer.Option("--tensor", metavar="N", min=1, max=_MOST, help="Devices that share each layer.")] = 1
    pipeline: Annotated[int, typer.Option("--pipeline", metavar="N", min=1, max=_MOST, help="Stages of layers.")] = 1
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", min=1, max=_MOST, help="Replicas, over which --zero shards.")] = 1
    zero: Annotated[
        int, typer.Option("--zero", metavar="0-3", min=0, max=3, help="1: optimizer sharded, 2: gradients too, 3: weights too, as FSDP.")
    ] = 0
    as_json: JsonOption = False
    # fmt: on


@with_options(options=TuneFitOptions)
def fit(
    file: FileArgument,
    options: TuneFitOptions,
) -> None:
    """Predict the memory of a model, and its largest batch.

    Of training or inference, on each of several devices. Activations are those of PyTorch with fused attention. Exit codes: 0, 2 bad input.
    """
    from unidle.tune.fit.memory import DEVICES, largest_batch, memory_of
    from unidle.tune.fit.model import ShardedOver, Use

    model = read_decoder(file)
    _check(options, model)
    shape = (options.batch, options.sequence, options.precision)
    use = Use(*shape, not options.serve, options.optimizer, options.recompute)
    cut = ShardedOver(options.tensor, options.pipeline, options.replicas, options.zero)
    memory = memory_of(model, use, cut)
    fits = [(name, largest_batch(model, use, cut, int(size * 2**30))) for name, size in DEVICES.items()]
    if options.as_json:
        print_json({
            "parameters": model.parameters, "bytes": memory.parts(), "peak_bytes": memory.peak, "arithmetic": list(memory.arithmetic),
            "fits": [{"device": name, "batch": batch} for name, batch in fits],
        })  # fmt: skip
        return
    for line in memory.arithmetic:
        say(line)
    say(f"most at one moment: {memory.peak / 2**30:.2f} GiB on each device")
    show_table(
        ["device", "largest batch"], [[name, str(batch) if batch else "does not fit"] for name, batch in fits]
    )


def _check(options: TuneFitOptions, model: DecoderModel) -> None:
    """Errors: BadInput for options that do not belong together, or are not for this model."""
    if not options.serve and options.precision in ("int8", "int4"):
        raise BadInput(
            "is for inference",
            field="--precision",
            value=options.precision,
            remedy="add --serve, or use bf16",
        )
    most_of = {"--tensor": (options.tensor, model.heads), "--pipeline": (options.pipeline, model.layers)}
    for name, (value, most) in most_of.items():
        if value > most:
            raise BadInput(
                "is more than the model has", field=name, value=value, remedy=f"use at most {most}"
            )
    if model.positions and options.sequence > model.positions:
        raise BadInput(
            "is longer than the positions of the model", field="--sequence", value=options.sequence,
            remedy=f"use at most {model.positions}",
        )  # fmt: skip


def read_decoder(path: str) -> DecoderModel:
    """The model of a file. Errors: BadInput."""
    from unidle.files.decoder_file import load_decoder
    from unidle.tune.fit.model import DecoderModel

    file = load_decoder(path)
    gated = file.form == "llama"
    return DecoderModel(
        file.layers, file.hidden, file.heads, file.kv_heads or file.heads, file.head_dim or file.hidden // file.heads,
        file.intermediate or 4 * file.hidden, file.vocabulary, file.positions, gated, not gated if file.bias is None else file.bias, file.tied,
    )  # fmt: skip
