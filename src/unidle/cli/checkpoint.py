"""``unidle checkpoint``: list, verify, prune; and process trees where CRIU works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, age, clock_time, print_json, say, show_table, warn
from unidle.cli.help import Commands
from unidle.cli.times import duration_option

if TYPE_CHECKING:
    from unidle.checkpoint.verify import CheckpointVerdict

PathArgument = Annotated[
    str,
    typer.Argument(metavar="PATH", show_default=False, help="Directory of checkpoints, or one checkpoint."),
]

checkpoint_app = Commands(help="List, verify and prune checkpoints of any framework.")


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    app.add_typer(checkpoint_app, name="checkpoint")


@checkpoint_app.command("list")
def list_(
    path: PathArgument,
    as_json: JsonOption = False,
    quick: Annotated[bool, typer.Option("--quick", help="Check sizes and headers only.")] = False,
) -> None:
    """List checkpoints, newest first. Each is good, bad or unverified, with the reason."""
    from unidle.checkpoint.find import judged

    found = list(judged(path, deep=not quick))
    if as_json:
        print_json([_as_json(verdict) for verdict in found])
        return
    if not found:
        say("no checkpoint")
    show_table(["step", "saved", "size", "files", "format", "state", "path", "why"], [_row(v) for v in found])


@checkpoint_app.command("verify")
def verify_(path: PathArgument, as_json: JsonOption = False) -> None:
    """Read every byte of the newest checkpoint, or of the given one.

    Exit codes: 0 good, 1 bad, 3 undecided."""
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
            say(f"the newest usable checkpoint is {good.path}: {good.state}: {good.why}")
    if newest is None:
        raise typer.Exit(3)
    if newest.state != "good":
        raise typer.Exit(1 if newest.state == "bad" else 3)


@checkpoint_app.command("prune")
def prune(
    path: PathArgument,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", help="Number of newest checkpoints that stay.")
    ] = 2,
    keep_every: Annotated[
        int,
        typer.Option(
            "--keep-every", metavar="STEPS", help="Also keep checkpoints whose step is a multiple of this."
        ),
    ] = 0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without this option, only list what would be removed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old, bad and unfinished checkpoints. The newest good one always stays."""
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
    say(f"{freed / 2**20:.1f} MiB {'freed' if yes else 'would be freed; add --yes to remove them'}")


@checkpoint_app.command("interval")
def interval(
    stall_s: Annotated[
        float,
        duration_option("--checkpoint-write", "--stall", text="Time that a gang waits for a checkpoint."),
    ],
    mttf_s: Annotated[
        float, duration_option("--mttf", text="Mean time between failures of the job: 86400 (seconds), 12h.")
    ],
    restart_s: Annotated[
        float, duration_option("--restart", text="Start-up time of each attempt after the first.")
    ] = 60.0,
    detect_s: Annotated[float, duration_option("--detect", text="Time from a fault to its detection.")] = 5.0,
    write_s: Annotated[
        float,
        duration_option(
            "--durable", "--write", text="Time until a checkpoint is durable; no interval is shorter."
        ),
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Compute the best interval between checkpoints (modelled). It leaves the most time for work that is not lost."""
    from unidle.checkpoint.interval import Costs, best_interval, ettr, young

    costs = Costs(stall_s, mttf_s, restart_s, detect_s, write_s)
    best = best_interval(costs)
    if as_json:
        print_json(
            {"interval_s": best, "ettr": ettr(best, costs), "young_s": young(costs), "how": "modelled"}
        )
        return
    say(
        f"every {age(int(best * 1e9))}: {100 * ettr(best, costs):.2f} % of the time is useful work (modelled)"
    )
    say(f"by Young's formula: every {age(int(young(costs) * 1e9))}")


@checkpoint_app.command("freeze")
def freeze(
    pid: Annotated[int, typer.Argument(metavar="PID", show_default=False, help="Root of the process tree.")],
    directory: Annotated[
        str, typer.Argument(metavar="DIRECTORY", show_default=False, help="New directory for the processes.")
    ],
    leave_running: Annotated[
        bool, typer.Option("--leave-running", help="Leave the processes running.")
    ] = False,
) -> None:
    """Freeze a process tree into a directory with CRIU. GPU processes need cuda-checkpoint, too."""
    from unidle.checkpoint.criu import dump

    dump(pid, directory, leave_running=leave_running)
    say(f"process {pid} is in {directory}")


@checkpoint_app.command("thaw")
def thaw(
    directory: Annotated[
        str, typer.Argument(metavar="DIRECTORY", show_default=False, help="Directory of frozen processes.")
    ],
) -> None:
    """Resume a frozen process tree."""
    from unidle.checkpoint.criu import restore

    say(f"process {restore(directory)} runs again")
    warn("it is a child of the first process now; its terminal and its launcher are gone")


def _as_json(verdict: CheckpointVerdict) -> dict[str, Any]:
    return {
        "path": verdict.path, "step": verdict.step, "time_ns": verdict.time_ns, "bytes": verdict.size_bytes,
        "shards": verdict.shards, "format": verdict.format, "state": verdict.state, "why": verdict.why,
    }  # fmt: skip


def _row(verdict: CheckpointVerdict) -> list[str]:
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
