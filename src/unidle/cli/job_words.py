"""What ``unidle run`` and ``unidle submit`` take of a job: a job file or a program, and options that win over the file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.cli import complete
from unidle.cli.common import warn
from unidle.cli.help import Command
from unidle.cli.times import duration_option
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.jobs import JobSpec


@dataclass(frozen=True, slots=True)
class TypedProgram:
    """The words of a program that stood after the options, without ``--``."""

    words: tuple[str, ...]


class JobCommand(Command):
    """A command whose first word that is no option is a job file, or a program with all that follows it.

    Options may stand on both sides of a job file. A program arrives as :class:`TypedProgram` in the context's object.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the program's words away before the options are parsed."""
        from unidle.files.job_command import is_job_file

        count = 0 if ctx.resilient_parsing else self._words(ctx, args)
        if count and not is_job_file(args[-count]):
            words = tuple(args[-count:])
            # the first `--` was taken for the end of the options, but it is the program's
            ctx.obj = TypedProgram(words if ctx.obj is None else (*words, "--", *ctx.obj))
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


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What options give of a job; None and empty are not given."""

    # fmt: off
    name: Annotated[str | None, _option("NAME", "Name of the job; default: the name of the script.")] = None
    ranks: Annotated[int | None, _option("N", "Number of ranks; default: 1.")] = None
    devices_per_rank: Annotated[int | None, _option("N", "Number of devices per rank; default: 1.")] = None
    device: Annotated[str | None, _option("gpu|cpu|any", "Kind of device; default: any.")] = None
    queue: Annotated[str | None, _option("NAME", "Queue that the job waits in; default: `default`.", autocompletion=complete.queues)] = None
    env: Annotated[list[str] | None, _option("NAME=VALUE", "Environment variable of every rank; may be repeated.")] = None
    memory: Annotated[
        str | None, _option("SIZE", "Maximum memory of each rank: 4GB, 200M (powers of 1000), 512MiB, 4Gi (of 1024).")
    ] = None
    workdir: Annotated[str | None, _option("DIR", "Working directory of the ranks; default: the current directory, or that of the job file.")] = None
    rendezvous: Annotated[
        str | None,
        _option("none|torchrun", "Whether ranks receive the variables of torchrun, such as RANK; default: torchrun for two or more "
        "ranks."),
    ] = None
    max_restarts: Annotated[int | None, _option("N", "Maximum number of restarts after failures; default: 0.")] = None
    kernels: Annotated[
        bool | None, typer.Option("--kernels", help="Record GPU kernel times, for `unidle profile`.", show_default=False)
    ] = None
    checkpoint: Annotated[str | None, _option("DIR", "Directory in which the job saves checkpoints.")] = None
    timeout: Annotated[
        float | None,
        duration_option(
            "--timeout", "--timeout-s", text="Time limit of the job, including restarts: 90 (seconds), 10m30s, 2h.",
            show_default=False,
        ),
    ] = None
    user: Annotated[str | None, _option("NAME", "User that the job belongs to; default: your login name. Only the owner of the store may give "
    "another user.")] = None
    # fmt: on

    def fields(self) -> dict[str, Any]:
        """The fields of a job file that are given; the user is not one of them. Errors: BadInput."""
        found = {
            "name": self.name, "ranks": self.ranks, "devices_per_rank": self.devices_per_rank, "device": self.device,
            "queue": self.queue, "env": _environment(self.env or []),
            "limits": None if self.memory is None else {"memory": self.memory}, "rendezvous": self.rendezvous,
            "kernels": self.kernels,
            "restart": None if self.max_restarts is None else {"max": self.max_restarts},
            "checkpoint": None if self.checkpoint is None else {"path": self.checkpoint}, "timeout_s": self.timeout,
        }  # fmt: skip
        if (workdir := self.workdir) is not None:
            # of the current directory, where a job file's own would be of the file's
            as_it_is = workdir.startswith("~") or not workdir
            found["workdir"] = workdir if as_it_is else str(Path(workdir).absolute())
        return {field: value for field, value in found.items() if value is not None}


_OPTIONS = frozenset("--" + field.name.replace("_", "-") for field in fields(JobOptions))
_SCRIPT = 1 << 20  # characters of a script that are read for a hint


def _environment(given: Sequence[str]) -> dict[str, str] | None:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput("is no NAME=VALUE", field="--env", value=text, remedy=f"--env {text}=VALUE")
        found[name] = value
    return found or None


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
    path: str | None, command: tuple[str, ...] | TypedProgram | None, options: JobOptions, by: str = "run"
) -> JobSpec:
    """The job that the command line of ``unidle BY`` describes. What options change in a file is printed."""
    from unidle.files.job import job_from_command
    from unidle.files.job_command import job_with_options

    if (path is None) == (command is None):
        problem = "give either a job file or a command" if path else "give a job file or a command"
        raise BadInput(
            problem, field="JOB", remedy=f"unidle {by} JOB.yaml, or unidle {by} --ranks 4 python train.py"
        )
    given = options.fields()
    if path is not None:
        spec, changes = job_with_options(path, given)
        for change in changes:
            warn(change)
        return spec
    if isinstance(command, TypedProgram):
        _warn_of_options(command.words, by)
    return job_from_command(_typed(command or (), given, by), **given)


def _warn_of_options(words: Sequence[str], by: str) -> None:
    """Say so where a script receives an option of unidle, which its text does not name."""
    script = next((index for index, word in enumerate(words[:2]) if word.endswith(".py")), None)
    if script is None:
        return
    try:
        with Path(words[script]).open(encoding="utf-8", errors="replace") as opened:
            text = opened.read(_SCRIPT)
    except (OSError, ValueError):
        return  # the error about the file comes from its start
    for word in words[script + 1 :]:
        option = word.partition("=")[0]
        field = option.removeprefix("--").replace("-", "_")
        if option in _OPTIONS and not re.search(rf"\b{field}\b|{option}\b", text):
            example = f"unidle {by} {option} ... {words[script]}"
            warn(
                f"{option} after {words[script]} goes to {words[script]}; for unidle, put it before: {example}"
            )


def _typed(program: TypedProgram | tuple[str, ...], options: dict[str, Any], by: str) -> tuple[str, ...]:
    from unidle.files.job_command import command_of, literal_command_of

    path = None
    if by == "run":  # else it is started by another process, with a PATH of its own
        from unidle.engine.local.launch import path_of_ranks

        environment = {**os.environ, **path_of_ranks(os.environ), **options.get("env", {})}
        path = environment.get("PATH", os.defpath)
    workdir = options.get("workdir", ".")
    if isinstance(program, TypedProgram):
        return command_of(program.words, workdir, path)
    return literal_command_of(program, workdir, path)
