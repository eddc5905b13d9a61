"""``unidle replay faults``: what recorded faults would cost a gang, with and without each capability."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, print_json, say, show_table
from unidle.cli.option_set import with_options
from unidle.cli.replay_options import LONGEST_S, SaveOption, seconds_option, store_of_replay, whole_numbers
from unidle.cli.times import duration_option, seconds_of
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.control.replay.ettr import FaultOutcome
    from unidle.control.replay.faults import CapabilityCosts, FaultReplay, ReplayCase

_MOST_NODES = 100_000
_TERMS = (
    "write_s", "restart_s", "warm_s", "restore_s", "copy_s", "copy_restore_s", "detect_s", "preflight_s", "burn_in_s",
    "relapse_s", "recall", "step_s", "steps", "gpus_per_node",
)  # fmt: skip
"""Options that are a term of the replay under the same name."""
_WORDS = {
    "as_given": "as given", "no_spares": "without spares", "no_peer_copies": "without peer copies",
    "no_interval": "without interval choice", "no_warm_restart": "without warm restart",
    "no_preflight": "without preflight", "none": "with none of them",
}  # fmt: skip


def _switch(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", metavar="on|off", help=text)


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """Options of the command, in the order of its help."""

    # fmt: off
    trace: Annotated[str, typer.Option("--trace", metavar="FILE", help="Fault trace in JSON; see docs/how-to/failures.md.")]
    gang: Annotated[str, typer.Option("--gang", metavar="N[,N...]", help="Nodes of the job; several sizes are replayed one by one.")] = "128"
    servers: Annotated[int, typer.Option("--servers", metavar="N", min=1, max=_MOST_NODES, help="Servers of the trace, including those without a fault.")] = 400
    spares: Annotated[int, typer.Option("--spares", metavar="K", min=0, max=_MOST_NODES, help="Spare nodes.")] = 12
    peer_copies: Annotated[str, _switch("peer-copies", "Keep copies of the state in the memory of other nodes.")] = "on"
    warm: Annotated[str, _switch("warm", "Keep processes ready on all nodes that have all imports done.")] = "on"
    preflight: Annotated[str, _switch("preflight", "Check nodes before each start, and burn them in after each repair.")] = "on"
    checkpoint_every: Annotated[str, typer.Option("--checkpoint-every", metavar="auto|TIME", help="Work between two checkpoints: 1800 (seconds), 30m; auto: from the cost model.")] = "auto"
    fixed_every: Annotated[float, seconds_option("fixed-every", "Interval for the comparison without auto.")] = 1800.0
    intervals: Annotated[
        str | None, typer.Option("--intervals", metavar="TIME[,TIME...]", show_default=False, help="Also replay these fixed intervals.")
    ] = None
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=0, max=10**12, help="Steps of the job; 0: until the trace ends.")] = 0
    step_s: Annotated[float, duration_option("--step", "--step-s", text="Duration of one step.", least=0.001, most=86_400)] = 10.0
    write_s: Annotated[float, seconds_option("checkpoint-write write-s", "Time that a gang waits for a checkpoint.")] = 60.0
    restart_s: Annotated[float, seconds_option("restart restart-s", "Start-up time of each attempt after the first.")] = 300.0
    warm_s: Annotated[float, seconds_option("warm-restart warm-s", "Start-up time with warm processes.")] = 5.0
    restore_s: Annotated[float, seconds_option("restore restore-s", "Time to read a checkpoint.")] = 60.0
    copy_s: Annotated[float, seconds_option("copy copy-s", "Time that the gang waits for a copy to other nodes.")] = 0.5
    copy_restore_s: Annotated[float, seconds_option("copy-restore copy-restore-s", "Time to read such a copy.")] = 5.0
    detect_s: Annotated[float, seconds_option("detect detect-s", "Time from a fault to its detection.")] = 10.0
    preflight_s: Annotated[float, seconds_option("preflight-time preflight-s", "Time of the check before a start.")] = 5.0
    burn_in_s: Annotated[float, seconds_option("burn-in burn-in-s", "Time of the check after a repair.")] = 1800.0
    relapse_s: Annotated[float, seconds_option("relapse relapse-s", "A fault within this time after a repair means that the repair failed.")] = 86_400.0
    recall: Annotated[float, typer.Option("--recall", metavar="PART", min=0, max=1, help="Part of bad repairs that a burn-in finds.")] = 0.9
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", metavar="N", min=1, max=1024, help="GPUs per node.")] = 8
    price: Annotated[float, typer.Option("--price", metavar="USD", min=0, max=1e6, help="Price of a GPU-hour.")] = 10.0
    seeds: Annotated[str, typer.Option("--seeds", metavar="A[,B...]", help="Seeds that choose the servers of the trace.")] = "1"
    compare: Annotated[bool, typer.Option("--compare/--alone", help="Also replay without each capability that is on.")] = True
    jobs: Annotated[
        int | None, typer.Option("--processes", "--jobs", "-j", metavar="N", min=1, max=1024, show_default=False, help="Number of processes; default: one per CPU.")
    ] = None
    save: SaveOption = None
    as_json: JsonOption = False
    # fmt: on


@with_options(options=FaultOptions)
def faults(options: FaultOptions) -> None:
    """Replay recorded faults on a gang, and compare recovery capabilities. The output has effective training
    time, lost work and cost, with and without each capability.
    """
    from unidle.control.replay.faults import CapabilityCosts, FaultReplay, ReplayTerms, runs
    from unidle.files.fault_trace import load_fault_trace

    ways = CapabilityCosts(
        options.spares, _on(options.peer_copies, "--peer-copies"), _every(options.checkpoint_every),
        _on(options.warm, "--warm"), _on(options.preflight, "--preflight"),
    )  # fmt: skip
    terms = ReplayTerms(**{name: getattr(options, name) for name in _TERMS}, gpu_hour_price=options.price)
    sizes = whole_numbers(options.gang, "--gang", least=1, most=_MOST_NODES)
    drawn = whole_numbers(options.seeds, "--seeds", least=0, most=10**9)
    more = (
        [_length(part, "--intervals") for part in options.intervals.split(",")]
        if options.intervals is not None
        else []
    )
    replay = FaultReplay(load_fault_trace(options.trace), options.servers, terms)
    cases = _cases(replay, sizes, drawn, _ways(ways, options.fixed_every, more, options.compare))
    if options.save is None:
        found = list(runs(replay, cases, options.jobs or len(os.sched_getaffinity(0))))
    else:
        found = [(case, _kept(replay, case, options.save)) for case in cases]
    if options.as_json:
        print_json(_as_json(replay, found))
    else:
        _say(replay, found)


def _ways(
    ways: CapabilityCosts, fixed_s: float, intervals: list[float], compare: bool
) -> dict[str, CapabilityCosts]:
    from unidle.control.replay.faults import variants

    every = variants(ways, fixed_s, intervals)
    return every if compare else {name: one for name, one in every.items() if name == "as_given" or name.startswith("every_")}  # fmt: skip


def _cases(
    replay: FaultReplay, sizes: list[int], seeds: list[int], ways: dict[str, CapabilityCosts]
) -> list[ReplayCase]:
    from unidle.control.replay.faults import ReplayCase

    cases = [
        ReplayCase(name, size, seed, way) for size in sizes for name, way in ways.items() for seed in seeds
    ]
    for case in cases:
        replay.nodes(case)  # says at once what does not fit
    return cases


def _kept(replay: FaultReplay, case: ReplayCase, save: str) -> FaultOutcome:
    store = store_of_replay(save, f"{case.gang}-{case.name}-{case.seed}")
    try:
        return replay.run(case, store)
    finally:
        store.close()


def _on(text: str, field: str) -> bool:
    if text not in ("on", "off"):
        raise BadInput("is not a switch", field=field, value=text, remedy="write on or off")
    return text == "on"


def _every(text: str) -> float | None:
    return None if text == "auto" else _length(text, "--checkpoint-every", "auto or ")


def _length(text: str, field: str, or_: str = "") -> float:
    try:
        seconds = seconds_of(field, text, most=LONGEST_S)
    except BadInput:
        seconds = 0.0
    if not seconds:
        remedy = f"give {or_}a time above 0 such as 1800 (seconds) or 30m, at most {LONGEST_S} s"
        raise BadInput("is not an interval", field=field, value=text, remedy=remedy)
    return seconds


# -- what came of it -----------------------------------------------------------------------------------


def _grouped(
    found: list[tuple[ReplayCase, FaultOutcome]],
) -> dict[int, dict[str, list[tuple[int, FaultOutcome]]]]:
    """Outcomes with their seeds, by size and ways, in the order of the cases."""
    sizes: dict[int, dict[str, list[tuple[int, FaultOutcome]]]] = {}
    for case, outcome in found:
        sizes.setdefault(case.gang, {}).setdefault(case.name, []).append((case.seed, outcome))
    return sizes


def _as_json(replay: FaultReplay, found: list[tuple[ReplayCase, FaultOutcome]]) -> dict[str, Any]:
    gangs = []
    for size, variants in _grouped(found).items():
        given = variants["as_given"]
        rows = {
            name: {
                **_mean(outcomes),
                "ettr_least": min(o.ettr for _, o in outcomes),
                "ettr_most": max(o.ettr for _, o in outcomes),
                "ettr_worth": _of(given, "ettr") - _of(outcomes, "ettr"),
                "seeds": {str(seed): o.as_json() for seed, o in outcomes},
            }
            for name, outcomes in variants.items()
        }
        gangs.append({"nodes": size, "gpus": size * replay.terms.gpus_per_node, "variants": rows})
    return {
        "how": "modelled",
        "trace": {
            "servers": replay.servers,
            "days": replay.trace.end_ns / 86_400e9,
            "faults": len(replay.trace.faults),
            "faults_per_1000_node_days": replay.fault_rate * 86_400_000,
        },
        "terms": asdict(replay.terms),
        "gangs": gangs,
    }


def _mean(outcomes: list[tuple[int, FaultOutcome]]) -> dict[str, Any]:
    """Each figure's mean over the seeds that have it; ``holds`` and ``ended`` where all of them say so."""
    answer: dict[str, Any] = {}
    every = [o.as_json() for _, o in outcomes]
    for name, first in every[0].items():
        values = [one[name] for one in every if one[name] is not None]
        if isinstance(first, bool):
            answer[name] = all(values)
        else:
            answer[name] = sum(values) / len(values) if values else None
    return answer


def _of(outcomes: list[tuple[int, FaultOutcome]], name: str) -> float:
    return float(_mean(outcomes)[name] or 0.0)


def _say(replay: FaultReplay, found: list[tuple[ReplayCase, FaultOutcome]]) -> None:
    heads = [
        "", "ETTR %", "worth", "placed %", "formula %", "save every", "restarts", "wait h", "lost GPU-h",
        f"paid k{replay.terms.currency}", "per useful GPU-h",
    ]  # fmt: skip
    for size, variants in _grouped(found).items():
        given = _of(variants["as_given"], "ettr")
        rows = []
        for name, outcomes in variants.items():
            mean = _mean(outcomes)
            formula = mean["formula"]
            useful = mean["per_useful_gpu_h"]
            rows.append([
                _words(name), f"{100 * mean['ettr']:.2f}", "" if name == "as_given" else f"{100 * (given - mean['ettr']):.2f}",
                f"{100 * mean['ettr_placed']:.2f}",
                "-" if formula is None else f"{100 * formula:.2f}" + ("" if mean["holds"] else " *"),
                f"{mean['save_every_s']:.0f}", f"{mean['restarts']:.1f}", f"{mean['wait_h']:.1f}", f"{mean['lost_gpu_h']:.0f}",
                f"{mean['paid'] / 1000:.1f}", "-" if useful is None else f"{useful:.2f}",
            ])  # fmt: skip
        say(f"a gang of {counted(size, 'node')}, {size * replay.terms.gpus_per_node} GPUs")
        show_table(heads, rows)
        say()
    days = replay.trace.end_ns / 86_400e9
    say(
        f"{counted(len(replay.trace.faults), 'fault')} of {counted(replay.servers, 'server')} in {days:.1f} days; "
        "worth: loss of ETTR in points; placed: without the hours in which no node was free."
    )
    say(
        "formula: Meta's formula for the restarts of the replay (*: too few, or too close together). "
        "All figures are modelled by the scheduler that places real jobs."
    )


def _words(name: str) -> str:
    return _WORDS.get(name) or name.replace("_", " ").removesuffix("s") + " s"
