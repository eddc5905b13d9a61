"""``unidle tune profile``: what slow places cost in a program that runs."""

from __future__ import annotations

import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.cli import complete
from unidle.cli.common import JsonOption, StoreOption, print_json, say, say_whole, warn
from unidle.cli.option_set import with_options
from unidle.cli.times import duration_option
from unidle.cli.tune_words import IgnoreOption, SelectOption, check_is_program_directory, tune_settings
from unidle.errors import BadInput, CannotRun
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.tune.costs import CostedFinding
    from unidle.tune.settings import TuneSettings
    from unidle.tune.trial.sampled import SampledProfile


@dataclass(frozen=True, slots=True)
class TuneProfileOptions:
    """Options of a profile, in the order of the help."""

    # fmt: off
    target: Annotated[
        str | None,
        typer.Argument(metavar="[PID|JOB]", show_default=False, autocompletion=complete.jobs, help="A process, or a job that runs on this machine."),
    ] = None
    seconds: Annotated[float | None, duration_option("--seconds", text="Duration: 30 (seconds), 5m; default: 60, and for a process or job 10.", least=0.1, most=86400, show_default=False)] = None
    select: SelectOption = None
    ignore: IgnoreOption = None
    store: StoreOption = None
    as_json: JsonOption = False
    # fmt: on


@with_options(options=TuneProfileOptions)
def profile(context: typer.Context, options: TuneProfileOptions) -> None:
    """Show what findings cost: their shares of a step.

    With the most that a step can become faster. Of a program, which follows `--` and runs in a copy of the current directory, or of a process or job. Findings with less than 3 % are left out; lines that no rule finds have no code.

    Exit codes: 0 shown; 1 the program fails; 2 bad input; 3 not permitted or not possible here; 5 the target ended before a sample was taken.
    """
    from unidle.tune.costs import costed

    command: tuple[str, ...] | None = context.obj
    if bool(command) == bool(options.target):
        raise BadInput(
            "needs one of both", field="COMMAND, PID|JOB",
            remedy="unidle tune profile -- python train.py, or unidle tune profile PID",
        )  # fmt: skip
    if command:
        settings = tune_settings(["."], options.select, options.ignore, None)
        seen = _of_program(command, options.seconds or 60)
        _show(seen, costed(Path.cwd(), ["."], settings, seen), options.as_json)
    else:
        seen, paths, settings = _of_process(options)
        _show(seen, costed(None, paths, settings, seen) if paths else [], options.as_json)


def _of_program(command: tuple[str, ...], seconds: float) -> SampledProfile:
    """Sampled in a copy of the current directory. Errors: ProgramFails, CannotRun."""
    from unidle.tune.trial.run import ProgramFails
    from unidle.tune.trial.sampled import sampled_whole
    from unidle.tune.trial.workshop import Workshop

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, leaves no copies behind
    here = check_is_program_directory()
    with tempfile.TemporaryDirectory(prefix="unidle-tune-") as scratch:
        shop = Workshop(here.resolve(), command, Path(scratch), time.monotonic() + seconds)
        seen, run = sampled_whole(shop)
    if run.failed and not run.timed_out:
        raise ProgramFails(f"the program {run.failed}", field="command", remedy="it has to run without input")
    if not seen.stacks:
        raise CannotRun(
            f"nothing was seen of the program in {seconds:.0f} s", field="command",
            remedy="raise --seconds; a program without optimizer steps has to end by itself",
        )  # fmt: skip
    return seen


def _of_process(options: TuneProfileOptions) -> tuple[SampledProfile, list[str], TuneSettings]:
    """By the profiler: eBPF if it is permitted, else the best that works here. Errors: BadInput, CannotRun, TargetEnded."""
    from unidle.cli.profile import look_at
    from unidle.cli.profile_options import Options
    from unidle.cli.tune_scope import files_of, sampled_of

    report, lines = look_at(
        Options(target=options.target, seconds=options.seconds or 10, store=options.store)
    )
    seen = sampled_of(report, lines)
    paths = files_of(seen)
    return seen, paths, tune_settings(paths or ["."], options.select, options.ignore, None)


def _show(seen: SampledProfile, found: list[CostedFinding], as_json: bool) -> None:
    from unidle.tune.trial.serving import served_times

    step_ms, served = seen.step_ms, served_times(seen.requests)
    if as_json:
        print_json({
            "step_ms": round(step_ms, 3) if step_ms is not None else None, "steps": seen.steps,
            "parts": {name: round(100 * share, 1) for name, share in seen.parts().items()},
            "serving": served.document() if served is not None else None, "findings": [one.document() for one in found],
        })  # fmt: skip
        return
    parts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in seen.parts().items() if share >= 0.005)
    if served is not None:
        say(f"{counted(served.requests, 'request')}: {served.text()}; {parts}")
    else:
        say(
            f"{seen.steps} steps of {step_ms:.1f} ms: {parts}"
            if step_ms is not None
            else f"no steps: {parts}"
        )
    for one in found:
        of_requests = f" (TTFT {100 * one.prefill:.0f} %, TPOT {100 * (one.decode or 0):.0f} %)" if one.prefill is not None else ""  # fmt: skip
        say_whole(
            f"{100 * one.share:5.1f} %{of_requests} at most {one.bound:.2f}x {one.file}:{one.line} {one.code or 'no rule'}: {one.message}"
        )
    if not found:
        warn("no finding and no line has 3 % of the time")
