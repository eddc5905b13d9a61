"""``unidle tune run``: which edits make a program faster and change nothing else."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import JsonOption, print_json, say, say_whole, warn
from unidle.cli.option_set import with_options
from unidle.cli.tune_words import SelectOption, check_is_program_directory, tune_settings
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from unidle.tune.trial.measure import SpeedUp
    from unidle.tune.trial.results import ModelRounds, TriedChange, TuneRun


@dataclass(frozen=True, slots=True)
class TuneRunOptions:
    """Options of a run, in the order of the help."""

    # fmt: off
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", min=0.01, max=1440, help="Budget of time; what is not shown by then is inconclusive.")
    ] = 10
    unsafe: Annotated[
        bool, typer.Option("--unsafe-fixes", help="Also edits that change precision or what is printed. They have to compute the same in float64.")
    ] = False
    select: SelectOption = None
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=0, max=100, help="Proposals of the model that UNIDLE_TUNE_URL names.")
    ] = 5
    first_steps: Annotated[
        int, typer.Option("--first-steps", metavar="N", min=0, max=10**9, show_default=False, help="Stop each run after N steps of the optimizer; what follows is neither measured nor verified.")
    ] = 0
    patch: Annotated[
        str | None, typer.Option("--patch", metavar="FILE", show_default=False, help="Write the patch of all that is kept to this file.")
    ] = None
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", show_default=False, help="Write a report: as Markdown to *.md, else as an HTML page.")
    ] = None
    as_json: JsonOption = False
    # fmt: on


@with_options(options=TuneRunOptions)
def run(context: typer.Context, options: TuneRunOptions) -> None:
    """Try edits of a program, and keep those that are faster.

    Kept edits compute the same. The program follows `--`, as in `unidle tune run -- python train.py`. It runs in copies of the current directory. The directory itself is not changed; `git apply` takes the patch.

    Exit codes: 0 something was kept, or nothing was to be won; 1 the program fails; 2 bad input.
    """
    from unidle.tune.fixes.rewrite import need_libcst
    from unidle.tune.trial.run import TuneOptions, tune_run

    command: tuple[str, ...] | None = context.obj
    if not command:
        raise BadInput(
            "needs a program", field="COMMAND", remedy="unidle tune run --minutes 10 -- python train.py"
        )
    need_libcst()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, leaves no copies behind
    here = check_is_program_directory()
    settings = tune_settings(["."], options.select, None, None)
    model = _model(options.rounds)
    wanted = TuneOptions(options.minutes, options.unsafe, options.first_steps, model)
    found = tune_run(here, command, settings, wanted, progress=warn)
    _write("--patch", options.patch, lambda: found.patch.encode())
    _write("--report", options.report, lambda: report_bytes(found, str(options.report)))
    if options.as_json:
        print_json(_document(found))
    else:
        _show(found)


def _write(option: str, file: str | None, text: Callable[[], bytes]) -> None:
    """Errors: CannotRun."""
    from unidle.cli.common import cannot_write

    if file is None:
        return
    try:
        Path(file).write_bytes(text())
    except OSError as error:
        raise cannot_write(option, file, error) from error


def report_bytes(found: TuneRun, file: str) -> bytes:
    """Markdown for a name that ends in ``.md``, else a page with a flame graph."""
    from unidle.cli.tune_scope import as_profile
    from unidle.scope.export import html
    from unidle.tune.report import html_parts, markdown

    if file.endswith(".md"):
        return markdown(found).encode()
    title, parts = "What makes the program faster", html_parts(found)
    before, category = as_profile(found.before)
    if found.speedup is None:
        return html.write(before, category=category, title=title, preface=parts)
    after, category = as_profile(found.after)
    return html.write(
        after,
        before=before,
        category=category,
        title=title,
        preface=parts,
        before_name="the program as it was",
    )


def _model(rounds: int) -> ModelRounds | None:
    """The model of the environment; None without one, which is reported once. Errors: BadInput."""
    from unidle.tune.endpoint.settings import NO_ENDPOINT, endpoint_of

    endpoint = endpoint_of()
    if endpoint is None:
        warn(NO_ENDPOINT)
        return None
    from unidle.tune.endpoint.client import ModelClient
    from unidle.tune.trial.results import ModelRounds

    return ModelRounds(ModelClient(endpoint), rounds) if rounds else None


def _document(found: TuneRun) -> dict[str, Any]:
    return {
        "baseline": {
            "wall_s": round(found.baseline.wall_s, 3), "cpu_s": round(found.baseline.cpu_s, 3), "steps": found.steps,
            "step_ms": round(found.before.step_ms, 3) if found.before.step_ms else None, "control": _speed(found.control),
            "waited_pct": round(100 * found.waited, 1) if found.waited is not None else None,
        },
        "tried": [
            {
                **_proposer(one, found), "file": one.change.file, "line": one.change.line, "class": one.change.kind,
                "patch": one.patch, "verdict": one.verdict, "why": one.why, **_speed(one.speedup),
                "cpu_speedup": round(one.cpu, 3) if one.cpu else None,
            }
            for one in found.tried
        ],
        "stack": {**_speed(found.speedup), "patch": found.patch},
    }  # fmt: skip


def _proposer(one: TriedChange, found: TuneRun) -> dict[str, str]:
    """The code of the rule, or the model."""
    return {"agent": found.model} if one.change.code == "agent" else {"code": one.change.code}


def _speed(one: SpeedUp | None) -> dict[str, float | None]:
    if one is None:
        return {"speedup": None, "low": None, "high": None}
    return {"speedup": round(one.ratio, 3), "low": round(one.low, 3), "high": round(one.high, 3)}


def _place(one: TriedChange) -> str:
    return f"{one.change.file}:{one.change.line}" if one.change.line else one.change.file


def _show(found: TuneRun) -> None:
    for one in found.tried:
        fast = (
            f" {one.speedup.ratio:.2f}x [{one.speedup.low:.2f}, {one.speedup.high:.2f}]"
            if one.speedup
            else ""
        )
        say_whole(f"{one.verdict}: {_place(one)} {one.change.code}{fast} {one.why}")
    if found.speedup is not None:
        say(
            f"{counted(len(found.stack), 'change')} together: {found.speedup.ratio:.2f}x "
            f"[{found.speedup.low:.2f}, {found.speedup.high:.2f}] in {counted(found.speedup.pairs, 'pair')} of runs"
        )
        say_whole(found.patch.rstrip("\n"))
    else:
        say("nothing is kept" if found.tried else "nothing to try")
