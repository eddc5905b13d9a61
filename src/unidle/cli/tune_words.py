"""What the commands of ``unidle tune`` share: paths, options of rules, and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.tune.settings import TuneSettings

PathsArgument = Annotated[
    list[str],
    typer.Argument(metavar="PATH", show_default=False, help="Python files, notebooks or directories."),
]
SelectOption = Annotated[
    str | None,
    typer.Option("--select", metavar="CODE[,..]", show_default=False, help="Rules or beginnings of codes, such as UDL2; default: all."),
]  # fmt: skip
IgnoreOption = Annotated[
    str | None,
    typer.Option("--ignore", metavar="CODE[,..]", show_default=False, help="Rules to leave out, in addition to those of pyproject.toml."),
]  # fmt: skip
ExcludeOption = Annotated[
    str | None,
    typer.Option("--exclude", metavar="PATTERN[,..]", show_default=False, help="Names or paths in directories that are left alone."),
]  # fmt: skip


def check_paths_exist(paths: Sequence[str]) -> None:
    """Errors: BadInput for the first path that does not exist."""
    for path in paths:
        if not Path(path).exists() and not Path(path).is_symlink():
            raise BadInput("does not exist", field="PATH", value=path, remedy="name files or directories")


def check_is_program_directory() -> Path:
    """The current directory. Errors: BadInput if it is / or the home directory."""
    here = Path.cwd()
    if here in (Path("/"), Path.home()):
        raise BadInput(
            "is not the directory of a program", field="directory", value=str(here), remedy="cd to it"
        )
    return here


def tune_settings(
    paths: Sequence[str], select: str | None, ignore: str | None, exclude: str | None
) -> TuneSettings:
    """The settings of pyproject.toml with those of options. Errors: BadInput."""
    from unidle.tune.registry import rules
    from unidle.tune.settings import check_codes, read_settings, with_options

    known = list(rules())
    first = Path(paths[0])
    settings = read_settings(first if first.is_dir() else first.parent, known)
    chosen, left_out, excluded = (_words(one) for one in (select, ignore, exclude))
    check_codes(chosen, "--select", known)
    check_codes(left_out, "--ignore", known)
    return with_options(settings, chosen, left_out, excluded)


def _words(given: str | None) -> list[str]:
    return [one.strip() for one in (given or "").split(",") if one.strip()]
