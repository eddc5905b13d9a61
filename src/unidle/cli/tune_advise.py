"""``unidle tune advise``: advice without edits, with its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unidle.cli.common import JsonOption, print_json, say_whole, warn
from unidle.cli.help import Commands
from unidle.cli.option_set import with_options
from unidle.cli.tune_fit import FileArgument, read_decoder
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.tune.advice.answer import WorkedAdvice

_NOT_VERIFIED = "arithmetic from what was given; it was not verified on a device here"
advise_app = Commands(help="Advise on settings, with the arithmetic shown.")


def _show(advice: WorkedAdvice, as_json: bool) -> None:
    if as_json:
        print_json(advice.document())
        return
    for line in advice.arithmetic:
        say_whole(line)
    for line in advice.settings:
        say_whole(f"  {line}")
    warn(_NOT_VERIFIED)


@advise_app.command("workers")
def workers(
    sample_ms: Annotated[float, typer.Option("--sample-ms", metavar="MS", min=0.0001, max=1e6, help="Time of one sample in one process.")],
    step_ms: Annotated[float, typer.Option("--step-ms", metavar="MS", min=0.0001, max=1e7, help="Time of a step that waits for nothing.")],
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, max=1 << 20, help="Samples of a batch of one rank.")],
    cores: Annotated[int, typer.Option("--cores", metavar="N", min=1, max=4096, help="Cores of the node.")],
    node_ranks: Annotated[int, typer.Option("--node-ranks", metavar="N", min=1, max=1024, help="Ranks on the node.")] = 1,
    batch_bytes: Annotated[int, typer.Option("--batch-bytes", metavar="BYTES", min=0, max=1 << 40, help="Memory of a batch; 0 leaves that out.")] = 0,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Advise on the number of loader workers."""
    from unidle.tune.advice.training import LoaderLoad, loader_workers

    _show(loader_workers(LoaderLoad(sample_ms, step_ms, batch, cores, node_ranks, batch_bytes)), as_json)


@dataclass(frozen=True, slots=True)
class TuneAccumulateOptions:
    """Options in the order of the help."""

    # fmt: off
    sequences: Annotated[int, typer.Option("--sequences", metavar="N", min=1, max=1 << 24, help="Sequences of one update, of all replicas.")]
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="Device by its name in `unidle tune fit`, such as 'H100 80 GB'.")] = "H100 80 GB"
    sequence: Annotated[int, typer.Option("--sequence", metavar="TOKENS", min=1, max=1 << 24, help="Length of a sequence.")] = 2048
    precision: Annotated[Literal["fp32", "bf16", "fp8"], typer.Option("--precision", help="Of weights and products.")] = "bf16"
    optimizer: Annotated[Literal["adamw", "momentum", "sgd"], typer.Option("--optimizer", metavar="NAME", help="adamw, momentum or sgd.")] = "adamw"
    recompute: Annotated[bool, typer.Option("--recompute", help="Keep only the inputs of layers, and compute the rest again.")] = False
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", min=1, max=1 << 20, help="Replicas, over which --zero shards.")] = 1
    zero: Annotated[int, typer.Option("--zero", metavar="0-3", min=0, max=3, help="1: optimizer sharded, 2: gradients too, 3: weights too.")] = 0
    as_json: JsonOption = False
    # fmt: on


@advise_app.command("accumulate")
@with_options(options=TuneAccumulateOptions)
def accumulate(file: FileArgument, options: TuneAccumulateOptions) -> None:
    """Advise on batch size and accumulated gradients."""
    from unidle.tune.advice.training import accumulation
    from unidle.tune.fit.memory import DEVICES
    from unidle.tune.fit.model import ShardedOver, Use

    size = _device(options.on, DEVICES)
    use = Use(1, options.sequence, options.precision, True, options.optimizer, options.recompute)
    cut = ShardedOver(data=options.replicas, zero=options.zero)
    advice = accumulation(read_decoder(file), use, cut, (options.on, int(size * 2**30)), options.sequences)
    _show(advice, options.as_json)


def _device(name: str, known: dict[str, float]) -> float:
    """Errors: BadInput for a name that is not known."""
    if name not in known:
        raise BadInput(
            "is no known device", field="--on", value=name, remedy=f"use one of: {', '.join(known)}"
        )
    return known[name]


@advise_app.command("buckets")
def buckets(
    gradient_bytes: Annotated[int, typer.Option("--gradient-bytes", metavar="BYTES", min=1, max=1 << 44, help="Of all gradients of a rank.")],
    backward_ms: Annotated[float, typer.Option("--backward-ms", metavar="MS", min=0.001, max=1e7, help="Time of the backward pass.")],
    world: Annotated[int, typer.Option("--world", metavar="N", min=1, max=1 << 20, help="Ranks that average their gradients.")],
    link_gbps: Annotated[float, typer.Option("--link-gbps", metavar="GBPS", min=0.001, max=1e6, help="Slowest link between ranks, in Gbit/s.")],
    hop_us: Annotated[float, typer.Option("--hop-us", metavar="US", min=0, max=1e6, help="Latency of a hop.")] = 20,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Advise on the buckets of DistributedDataParallel."""
    from unidle.tune.advice.training import GradientLoad, gradient_buckets

    _show(gradient_buckets(GradientLoad(gradient_bytes, backward_ms, world, link_gbps, hop_us)), as_json)


@dataclass(frozen=True, slots=True)
class TuneNetworkOptions:
    """Options in the order of the help."""

    # fmt: off
    fabric: Annotated[Literal["infiniband", "roce", "ethernet"], typer.Option("--fabric", help="What connects the nodes.")]
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", min=1, max=1 << 20, help="Nodes of the job.")]
    link_gbps: Annotated[float, typer.Option("--link-gbps", metavar="GBPS", min=0.001, max=1e6, help="Of one network card, in Gbit/s.")]
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="N", min=1, max=1024, help="GPUs per node.")] = 8
    cards: Annotated[int, typer.Option("--cards", metavar="N", min=1, max=64, help="Network cards for the job on each node.")] = 1
    rtt_us: Annotated[float, typer.Option("--rtt-us", metavar="US", min=0, max=1e7, help="Time there and back between nodes.")] = 20
    gradient_bytes: Annotated[int, typer.Option("--gradient-bytes", metavar="BYTES", min=0, max=1 << 44, help="Of all gradients of a rank; 0 leaves the all-reduce out.")] = 0
    interface: Annotated[str, typer.Option("--interface", metavar="NAME", show_default=False, help="Network interface of the first connection, such as eth0.")] = ""
    hca: Annotated[str, typer.Option("--hca", metavar="NAME[,..]", show_default=False, help="InfiniBand or RoCE cards, such as mlx5_0,mlx5_1.")] = ""
    as_json: JsonOption = False
    # fmt: on


@advise_app.command("network")
@with_options(options=TuneNetworkOptions)
def network(options: TuneNetworkOptions) -> None:
    """Advise on settings of NCCL and of the network."""
    from unidle.tune.advice.network import NetworkShape, network_settings

    links = NetworkShape(
        options.fabric, options.hosts, options.gpus_per_node, options.cards, options.link_gbps, options.rtt_us, options.interface, options.hca
    )  # fmt: skip
    _show(network_settings(links, options.gradient_bytes), options.as_json)


@advise_app.command("spot")
def spot(
    price: Annotated[float, typer.Option("--price", metavar="USD", min=0, max=1e6, help="Price of a GPU-hour.")],
    spot_price: Annotated[float, typer.Option("--spot-price", metavar="USD", min=0, max=1e6, help="Price of a GPU-hour that may be taken away.")],
    interrupted_h: Annotated[float, typer.Option("--interrupted-h", metavar="HOURS", min=0.001, max=1e6, help="Mean hours between interruptions on spot.")],
    save_s: Annotated[float, typer.Option("--save-s", metavar="S", min=0, max=1e6, help="Seconds that a checkpoint stops the job.")],
    restart_s: Annotated[float, typer.Option("--restart-s", metavar="S", min=0, max=1e6, help="Seconds from an interruption to the next step.")] = 300,
    failed_h: Annotated[float, typer.Option("--failed-h", metavar="HOURS", min=0.001, max=1e6, help="Mean hours between failures on demand.")] = 720,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Advise whether spot instances are cheaper."""
    from unidle.tune.advice.budget import SpotMarket, spot_or_not

    _show(spot_or_not(SpotMarket(price, spot_price, interrupted_h, save_s, restart_s, failed_h)), as_json)


@advise_app.command("budget")
def budget(
    gpu_hours: Annotated[float, typer.Option("--gpu-hours", metavar="N", min=0.001, max=1e9, help="GPU-hours that there are.")],
    on: Annotated[str, typer.Option("--on", metavar="DEVICE", help="Device by its name in `unidle tune fit`, such as 'H100 80 GB'.")] = "H100 80 GB",
    mfu: Annotated[float, typer.Option("--mfu", metavar="SHARE", min=0.001, max=1, help="Part of the peak that training reaches.")] = 0.35,
    ratio: Annotated[float, typer.Option("--tokens-per-parameter", metavar="N", min=0.1, max=1e5, help="20 has the least loss for its compute.")] = 20,
    sequence: Annotated[int, typer.Option("--sequence", metavar="TOKENS", min=1, max=1 << 24, help="Length of a sequence.")] = 2048,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", metavar="TOKENS", min=1, max=1 << 34, help="Tokens of an update.")] = 524_288,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Advise on what to train in a number of GPU-hours."""
    from unidle.tune.advice.budget import PEAK_TFLOPS, TrainingBudget, fixed_budget

    peak = _device(on, {name: float(value) for name, value in PEAK_TFLOPS.items()})
    if batch_tokens < sequence:
        raise BadInput("is less than one sequence", field="--batch-tokens", value=batch_tokens, remedy=f"use at least {sequence}")  # fmt: skip
    _show(fixed_budget(TrainingBudget(gpu_hours, on, peak, mfu, ratio, sequence, batch_tokens)), as_json)
