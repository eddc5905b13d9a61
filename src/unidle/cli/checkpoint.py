"""``unidle checkpoint``: list, verify, prune; and process trees where CRIU works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, age, clock_time, print_json, say, table, warn

if TYPE_CHECKING:
    from unidle.checkpoint.verify import Verdict

PathArgument = Annotated[
    str,
    typer.Argument(metavar="PATH", show_default=False, help="A directory of checkpoints, or one checkpoint."),
]

checkpoint_app = typer.Typer(
    help="Find, verify and prune checkpoints, whoever wrote them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.add_typer(checkpoint_app, name="checkpoint")


@checkpoint_app.command("list")
def list_(
    path: PathArgument,
    as_json: JsonOption = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Sizes and headers only; the bytes are not read.")
    ] = False,
) -> None:
    """List the checkpoints, newest first: step, time, size, good, bad or unverified, and why."""
    from unidle.checkpoint.find import judged

    found = list(judged(path, deep=not quick))
    if as_json:
        print_json([_as_json(verdict) for verdict in found])
        return
    if not found:
        say("no checkpoint")
    for text in table(
        ["step", "saved", "size", "files", "format", "state", "path", "why"], [_row(v) for v in found]
    ):
        say(text)


@checkpoint_app.command("verify")
def verify_(path: PathArgument, as_json: JsonOption = False) -> None:
    """Read every byte of the newest checkpoint (or of the one named). Exit code 0: good, 1: bad, 3: could not tell."""
    from unidle.checkpoint.find import find_newest_good, judged

    newest = next(judged(path), None)
    good, passed = (None, []) if newest is None else find_newest_good(path)
    if as_json:
        print_json({
            "newest": _as_json(newest) if newest else None, "usable": _as_json(good) if good else None,
            "passed_over": [_as_json(verdict) for verdict in passed],
        })  # fmt: skip
    elif newest is None:
        say("no checkpoint")
    else:
        say(f"{newest.path}: {newest.state}: {newest.why}")
        if newest.state == "bad" and good is not None:
            say(f"the newest that can be used is {good.path}: {good.state}: {good.why}")
    if newest is None:
        raise typer.Exit(3)
    if newest.state != "good":
        raise typer.Exit(1 if newest.state == "bad" else 3)


@checkpoint_app.command("prune")
def prune(
    path: PathArgument,
    keep: Annotated[int, typer.Option("--keep", metavar="N", help="How many of the newest stay.")] = 2,
    keep_every: Annotated[
        int,
        typer.Option(
            "--keep-every", metavar="STEPS", help="Those stay too whose step is a multiple of this."
        ),
    ] = 0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove; without it only say what would be removed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old, bad and unfinished checkpoints; never the newest good one."""
    from unidle.checkpoint.find import judged
    from unidle.checkpoint.prune import choose, remove

    fates = choose(list(judged(path)), keep, keep_every)
    for fate in fates:
        if not fate.keep and yes:
            remove(fate.verdict.path)
    if as_json:
        print_json(
            [
                _as_json(f.verdict) | {"keep": f.keep, "removed": yes and not f.keep, "because": f.because}
                for f in fates
            ]
        )
        return
    word = "removed" if yes else "would be removed"
    for fate in fates:
        say(f"{'stays' if fate.keep else word}: {fate.verdict.path} ({fate.because})")
    freed = sum(fate.verdict.size_bytes for fate in fates if not fate.keep)
    say(f"{freed / 2**20:.1f} MiB {'freed' if yes else 'to free; --yes does it'}")


@checkpoint_app.command("interval")
def interval(
    stall_s: Annotated[
        float, typer.Option("--stall", metavar="S", help="Seconds that one save holds training up.")
    ],
    mttf_s: Annotated[
        float, typer.Option("--mttf", metavar="S", help="Mean seconds between failures of the job.")
    ],
    restart_s: Annotated[float, typer.Option("--restart", metavar="S", help="Seconds of a restart.")] = 60.0,
    detect_s: Annotated[
        float, typer.Option("--detect", metavar="S", help="Seconds until a failure is noticed.")
    ] = 5.0,
    write_s: Annotated[
        float,
        typer.Option(
            "--write", metavar="S", help="Seconds until one save is durable: no interval is shorter."
        ),
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """How often to save: the interval with the most time left for work that counts (modelled)."""
    from unidle.checkpoint.interval import Costs, best_interval, ettr, young

    costs = Costs(stall_s, mttf_s, restart_s, detect_s, write_s)
    best = best_interval(costs)
    if as_json:
        print_json(
            {"interval_s": best, "ettr": ettr(best, costs), "young_s": young(costs), "how": "modelled"}
        )
        return
    say(
        f"every {age(int(best * 1e9))}: {100 * ettr(best, costs):.2f} % of the time is work that counts (modelled)"
    )
    say(f"Young's rule says {age(int(young(costs) * 1e9))}")


@checkpoint_app.command("freeze")
def freeze(
    pid: Annotated[int, typer.Argument(metavar="PID", show_default=False)],
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", show_default=False)],
    leave_running: Annotated[bool, typer.Option("--leave-running", help="Do not end the processes.")] = False,
) -> None:
    """Freeze a process tree into a directory with CRIU (and cuda-checkpoint), where that works."""
    from unidle.checkpoint.criu import dump

    dump(pid, directory, leave_running=leave_running)
    say(f"process {pid} is in {directory}")


@checkpoint_app.command("thaw")
def thaw(directory: Annotated[str, typer.Argument(metavar="DIRECTORY", show_default=False)]) -> None:
    """Start a frozen process tree again."""
    from unidle.checkpoint.criu import restore

    say(f"process {restore(directory)} runs again")
    warn("it is a child of the first process now; its terminal and its launcher are gone")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "path": verdict.path, "step": verdict.step, "time_ns": verdict.time_ns, "bytes": verdict.size_bytes,
        "shards": verdict.shards, "format": verdict.format, "state": verdict.state, "why": verdict.why,
    }  # fmt: skip


def _row(verdict: Verdict) -> list[str]:
    step = "-" if verdict.step is None else str(verdict.step)
    size = f"{verdict.size_bytes / 2**20:.1f} MiB"
    return [
        step,
        clock_time(verdict.time_ns)[:19],
        size,
        str(verdict.shards),
        verdict.format,
        verdict.state,
        verdict.path,
        verdict.why,
    ]
