"""What ``unidle run`` and ``unidle submit`` take of a job: a job file or a program, and options that win over the file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli.common import warn
from unidle.cli.help import Command
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.jobs import JobSpec


@dataclass(frozen=True, slots=True)
class Program:
    """The words of a program that stood after the options, without ``--``."""

    words: tuple[str, ...]


class JobCommand(Command):
    """A command whose first word that is no option is a job file, or a program with all that follows it.

    Options may stand on both sides of a job file. A program arrives as :class:`Program` in the context's object.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the program's words away before the options are parsed."""
        from unidle.files.job_command import is_job_file

        count = 0 if ctx.resilient_parsing else self._words(ctx, args)
        if count and not is_job_file(args[-count]):
            words = tuple(args[-count:])
            # the first `--` was taken for the end of the options, but it is the program's
            ctx.obj = Program(words if ctx.obj is None else (*words, "--", *ctx.obj))
            args = args[:-count]
        return super().parse_args(ctx, args)

    def _words(self, ctx: Any, args: list[str]) -> int:
        """How many words there are from the first that is neither an option nor the value of one."""
        interspersed, ctx.allow_interspersed_args = ctx.allow_interspersed_args, False
        try:
            given, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        finally:
            ctx.allow_interspersed_args = interspersed
        return len(rest) + isinstance(given.get("job"), str)


def _option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, show_default=False, help=text, **more)


JobFileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB.yaml|PROGRAM [ARG]...", show_default=False,
        help="Job file (.yaml, .yml, .json; `-` reads standard input), or a program with its arguments.",
    ),
]  # fmt: skip
NameOption = Annotated[str | None, _option("NAME", "Name of the job; default: the script's.")]
RanksOption = Annotated[int | None, _option("N", "Processes in the gang; default 1.")]
DevicesPerRankOption = Annotated[int | None, _option("N", "Devices for each rank; default 1.")]
DeviceOption = Annotated[str | None, _option("gpu|cpu|any", "Kind of device; default: any.")]
QueueOption = Annotated[str | None, _option("NAME", "Queue that the job waits in; default: `default`.")]
EnvOption = Annotated[
    list[str] | None, _option("NAME=VALUE", "Environment variable of every rank; may be repeated.")
]
MemoryOption = Annotated[
    str | None,
    _option("SIZE", "Memory of each rank at most: 4GB, 200M (powers of 1000), 512MiB, 4Gi (of 1024)."),
]
WorkdirOption = Annotated[
    str | None, _option("DIR", "Directory that ranks start in; default: the current one, or the file's.")
]
RendezvousOption = Annotated[
    str | None,
    _option(
        "none|torchrun", "Whether ranks get the variables of torchrun, such as RANK; default: two or more do."
    ),
]
MaxRestartsOption = Annotated[int | None, _option("N", "Restarts after failures; default 0.")]
KernelsOption = Annotated[
    bool | None,
    typer.Option("--kernels", help="Record GPU kernel times, for `unidle profile`.", show_default=False),
]
CheckpointOption = Annotated[str | None, _option("DIR", "Directory in which the job saves checkpoints.")]
TimeoutOption = Annotated[
    str | None,
    _option(
        "TIME",
        "How long the job may run, restarts included: 90 (seconds), 10m30s, 2h.",
        "--timeout",
        "--timeout-s",
    ),
]

UserOption = Annotated[
    str | None, _option("NAME", "Whose job it is, if not yours; only for the owner of the store.")
]


def options_of(**options: Any) -> dict[str, Any]:
    """Fields of a job file from options of the command line; those not given are left out. Errors: BadInput, CannotRun."""
    max_restarts, checkpoint = options.pop("max_restarts", None), options.pop("checkpoint", None)
    memory, timeout, workdir = (options.pop(name, None) for name in ("memory", "timeout", "workdir"))
    if options.get("kernels"):
        from unidle.engine.local.injection import library  # the user is here to read why there is none

        library()
    options["restart"] = None if max_restarts is None else {"max": max_restarts}
    options["checkpoint"] = None if checkpoint is None else {"path": checkpoint}
    options["limits"] = None if memory is None else {"memory": memory}
    options["env"] = _environment(options.pop("env", None) or [])
    if timeout is not None:
        options["timeout_s"] = seconds_of("--timeout", timeout)
    if workdir is not None:
        # of the current directory, where a job file's own would be of the file's
        options["workdir"] = (
            workdir if workdir.startswith("~") or not workdir else str(Path(workdir).absolute())
        )
    return {field: value for field, value in options.items() if value is not None}


def _environment(given: Sequence[str]) -> dict[str, str] | None:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput("is no NAME=VALUE", field="--env", value=text, remedy=f"--env {text}=VALUE")
        found[name] = value
    return found or None


def seconds_of(option: str, text: str) -> float:
    """A time as users type it: ``90`` (seconds), ``2h``, ``10m30s``. Errors: BadInput."""
    from unidle.files.values import seconds_or_duration_ns

    try:
        return seconds_or_duration_ns(text) / 1e9
    except ValueError:
        raise BadInput(
            "is not a time", field=option, value=text, remedy="seconds, or a time such as 90s, 10m30s or 2h"
        ) from None


def ranks_of(option: str, text: str, ranks: int) -> tuple[int, ...]:
    """``0,2-3`` as numbers of ranks of a gang of ``ranks``. Errors: BadInput."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first:
            remedy = "numbers and ranges of ranks, such as 0,2-3"
            raise BadInput("names no ranks", field=option, value=text, remedy=remedy)
        if last >= ranks:
            remedy = "0" if ranks == 1 else f"0 to {ranks - 1}"
            raise BadInput("the job has no such rank", field=option, value=last, remedy=remedy)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def read_job(
    path: str | None, command: tuple[str, ...] | Program | None, options: dict[str, Any], by: str = "run"
) -> JobSpec:
    """The job that the command line of ``unidle BY`` describes. What options change in a file is printed."""
    from unidle.files.job import job_from_command
    from unidle.files.job_command import job_with_options

    if (path is None) == (command is None):
        problem = "give either a job file or a command" if path else "give a job file or a command"
        raise BadInput(
            problem, field="JOB", remedy=f"unidle {by} JOB.yaml, or unidle {by} --ranks 4 python train.py"
        )
    if path is not None:
        spec, changes = job_with_options(path, options)
        for change in changes:
            warn(change)
        return spec
    if isinstance(command, Program):
        command = _typed(command, options, by)
    return job_from_command(command or (), **options)


def _typed(program: Program, options: dict[str, Any], by: str) -> tuple[str, ...]:
    from unidle.files.job_command import command_of

    path = None
    if by == "run":  # else it is started by another process, with a PATH of its own
        from unidle.engine.local.launch import path_of_ranks

        environment = {**os.environ, **path_of_ranks(os.environ), **options.get("env", {})}
        path = environment.get("PATH", os.defpath)
    return command_of(program.words, options.get("workdir", "."), path)
