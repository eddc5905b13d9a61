"""``unidle replay openb``: the published packing experiment on traces of pods."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from unidle.cli.common import JsonOption, print_json, say, show_table
from unidle.cli.option_set import with_options
from unidle.cli.output import whole_file
from unidle.cli.replay_options import policies
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.control.replay.packing import PackingRun
    from unidle.files.openb import Pods
    from unidle.jobs.packing import NodeSize

_MOST_SEEDS = 10_000
_MOST_REQUESTED = 100.0


@dataclass(frozen=True, slots=True)
class PackOptions:
    """Options of the command, in the order of its help."""

    # fmt: off
    nodes: Annotated[str, typer.Option(metavar="FILE", help="Node list of the trace (CSV).")]
    pods: Annotated[str, typer.Option(metavar="FILE", help="Pod list of the trace (CSV).")]
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Policies to compare: unidle, fgd, bestfit, dotprod, packing, clustering, firstfit, random.",
        ),
    ] = "unidle,fgd,firstfit"
    requested: Annotated[
        float, typer.Option(metavar="X", help="Stop when X times the GPU capacity was requested.")
    ] = 1.3
    seeds: Annotated[str, typer.Option(metavar="A..B", help="Seeds: 42, or 42,43, or 42..51.")] = "42..51"
    decisions: Annotated[
        str | None,
        typer.Option(metavar="FILE.csv", show_default=False, help="Write one row per arrival."),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            "--processes",
            "--jobs",
            "-j",
            metavar="N",
            min=1,
            show_default=False,
            help="Number of processes; default: one per CPU.",
        ),
    ] = None
    as_json: JsonOption = False
    # fmt: on


@with_options(options=PackOptions)
def openb(options: PackOptions) -> None:
    """Pack an openb trace, as in the published experiment. The result is the share of GPU capacity that is allocated."""
    from unidle.control.replay.packing import Experiment
    from unidle.files.openb import read_nodes, read_pods

    names, wanted = _names(options.policy), _seeds(options.seeds)
    if not 0.0 < options.requested <= _MOST_REQUESTED:
        raise BadInput(
            "is not a multiple of the capacity", field="--requested", value=options.requested,
            remedy=f"give a number above 0, at most {_MOST_REQUESTED:g}",
        )  # fmt: skip
    sizes = read_nodes(options.nodes)
    trace = read_pods(options.pods, sizes)
    _note("preparing the policies")
    experiment = Experiment.of(names, sizes, trace.demands, options.requested)
    runs = []
    with _rows_of(options.decisions, (options.nodes, options.pods)) as out:
        for run in experiment.runs(
            wanted, options.jobs or len(os.sched_getaffinity(0)), traced=out is not None
        ):
            runs.append(run._replace(arrivals=()))
            _note(f"{len(runs)} of {counted(len(names) * len(wanted), 'run')}")
            if out is not None:
                _write(out, run, sizes, trace)
    _note("")
    if options.as_json:
        print_json(_as_json(names, runs))
    else:
        _say(names, runs)


def _names(text: str) -> list[str]:
    from unidle.control.replay.packing_experiment import POLICIES

    names = policies(text)
    unknown = next((name for name in names if name not in POLICIES), None)
    if unknown is not None:
        raise BadInput("is not a policy", field="--policy", value=unknown, remedy="known are " + ", ".join(POLICIES))  # fmt: skip
    return names


def _seeds(text: str) -> list[int]:
    """``42``, ``42,45`` or ``42..51`` (both ends belong to it)."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = (first, last if dots else first)
        if not all(end.isascii() and end.isdigit() and len(end) < 19 for end in ends) or int(ends[0]) > int(
            ends[1]
        ):
            raise BadInput(
                "is not a list of seeds", field="--seeds", value=text, remedy="write 42, or 42,43, or 42..51"
            )
        if int(ends[1]) - int(ends[0]) + len(seeds) >= _MOST_SEEDS:
            raise BadInput(
                "are too many seeds", field="--seeds", value=text, remedy=f"at most {_MOST_SEEDS:,}"
            )
        seeds.update(dict.fromkeys(range(int(ends[0]), int(ends[1]) + 1)))
    return list(seeds)


def _as_json(names: Sequence[str], runs: Sequence[PackingRun]) -> dict[str, Any]:
    return {
        "policies": {
            name: {
                "mean": _shown(_mean([run for run in runs if run.policy == name])),
                "seeds": [
                    {"seed": run.outcome.seed, **_shown(run.outcome.allocated_pct)}
                    for run in runs
                    if run.policy == name
                ],
            }
            for name in names
        }
    }


def _mean(runs: Sequence[PackingRun]) -> dict[float, float]:
    marks = runs[0].outcome.allocated_pct
    return {mark: sum(run.outcome.allocated_pct[mark] for run in runs) / len(runs) for mark in marks}


def _shown(allocated_pct: dict[float, float]) -> dict[str, float]:
    return {str(float(mark)): round(share, 6) for mark, share in allocated_pct.items()}


def _say(names: Sequence[str], runs: Sequence[PackingRun]) -> None:
    marks = list(runs[0].outcome.allocated_pct)
    header = ["policy", *(f"at {100 * mark:g} % requested" for mark in marks), "lowest", "highest", "seeds"]
    rows = []
    for name in names:
        own = [run for run in runs if run.policy == name]
        last = [run.outcome.allocated_pct[marks[-1]] for run in own]
        means = [f"{share:.2f}" for share in _mean(own).values()]
        rows.append([name, *means, f"{min(last):.2f}", f"{max(last):.2f}", str(len(own))])
    say("Allocated share of GPU capacity in percent, mean over seeds; lowest and highest at the end.")
    show_table(header, rows)


def _note(text: str) -> None:
    """Progress in one line of a terminal that the next one replaces."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


@contextmanager
def _rows_of(path: str | None, inputs: Sequence[str]) -> Iterator[TextIO | None]:
    """Where decisions are written: a file that appears under its name when it is complete."""
    if path is None:
        yield None
        return
    if os.path.realpath(path) in map(os.path.realpath, inputs):
        raise BadInput("is an input of this command", field="--decisions", value=path, remedy="name another file")  # fmt: skip
    with whole_file(path, "--decisions") as out:
        stream = io.TextIOWrapper(out, encoding="utf-8", newline="")
        stream.write("policy,seed,seq,pod,node,gpus\n")
        yield stream
        stream.flush()
        stream.detach()


def _write(out: TextIO, run: PackingRun, nodes: Sequence[NodeSize], trace: Pods) -> None:
    import csv

    writer = csv.writer(out, lineterminator="\n")
    for seq, arrival in enumerate(run.arrivals):
        milli = trace.demands[arrival.pod].gpu_milli
        writer.writerow([
            run.policy, run.outcome.seed, seq, trace.names[arrival.pod],
            nodes[arrival.node].name if arrival.node >= 0 else "",
            ";".join(f"{index}:{milli}" for index in arrival.gpus),
        ])  # fmt: skip
