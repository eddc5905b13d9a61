"""How commands show their help: in sections, each in one line of 80 columns, and under one name per option."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup

from unidle.cli.cluster_options import with_cluster
from unidle.cli.conversion import QuickConversion

_KIND: Final = re.compile(r" (?:<[^>]*>|INTEGER|FLOAT|TEXT)(?: RANGE)?$")


def name_of(parameter: Any) -> str:
    """The one name of an option: the first long one."""
    names: list[str] = parameter.opts
    return next((name for name in names if name.startswith("--")), names[0])


def old_names(parameter: Any) -> list[str]:
    """Names that an option had: every long one after the first. They are understood and shown nowhere."""
    return [name for name in parameter.opts if name.startswith("--")][1:]


def short_help(command: Any) -> str:
    """The first sentence of a command's help."""
    paragraph = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.?]) (?=[A-Z`])", paragraph, maxsplit=1)[0]


def described(parameter: Any, context: Any) -> tuple[str, str] | None:
    """An option or argument as the help shows it, and what it means; None for one that is not shown."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names: str = record[0]
    if parameter.param_type_name == "option":
        for old in old_names(parameter):
            names = names.replace(f", {old}", "")
    if parameter.param_type_name == "argument" or parameter.metavar is not None:
        names = _KIND.sub("", names)
    return names, record[1]


def _options(command: Any, context: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
    for parameter in command.get_params(context):
        if row := described(parameter, context):
            rows[parameter.param_type_name].append(row)
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        if rows[kind]:
            with formatter.section(title):
                formatter.write_dl(rows[kind])


def _without_old_names(command: Any, context: Any, offered: list[Any]) -> list[Any]:
    old = {name for parameter in command.get_params(context) for name in old_names(parameter)}
    return [item for item in offered if item.value not in old]


class Command(QuickConversion, TyperCommand):
    """A command whose help shows each option under one name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _options(self, ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return _without_old_names(self, ctx, super().shell_complete(ctx, incomplete))


class CommandGroup(QuickConversion, TyperGroup):
    """Commands in sections; ``sections`` names them in order, and commands that are in none come last."""

    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _options(self, ctx, formatter)
        width = max((len(name) for name in self.list_commands(ctx)), default=0)
        for title, names in self._in_sections(ctx):
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), short_help(self._command(ctx, name))) for name in names]
                )

    def _in_sections(self, ctx: Any) -> Iterator[tuple[str, list[str]]]:
        shown = [name for name in self.list_commands(ctx) if not self._command(ctx, name).hidden]
        for title, names in self.sections.items():
            if here := [name for name in names if name in shown]:
                yield title, here
        placed = {name for names in self.sections.values() for name in names}
        if rest := [name for name in shown if name not in placed]:
            yield "More commands" if self.sections else "Commands", rest

    def _command(self, ctx: Any, name: str) -> Any:
        return self.get_command(ctx, name)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        offered = super().shell_complete(ctx, incomplete)
        for item in offered:
            command = self._command(ctx, item.value)
            if command is not None:
                item.help = short_help(command)
        return _without_old_names(self, ctx, offered)


class Commands(typer.Typer):
    """A set of commands, or a group of them, with the help of this module."""

    def __init__(
        self, *, cls: type[CommandGroup] = CommandGroup, no_args_is_help: bool = True, **more: Any
    ) -> None:
        super().__init__(
            cls=cls, no_args_is_help=no_args_is_help, rich_markup_mode=None, pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, **more,
        )  # fmt: skip

    def command(self, name: str | None = None, **more: Any) -> Callable[[Any], Any]:
        """As typer's, with :class:`Command`."""
        add = super().command(name, **{"cls": Command, **more})
        return lambda command: add(with_cluster(command))

    def callback(self, **more: Any) -> Callable[[Any], Any]:
        """As typer's, with the options of a cluster."""
        add = super().callback(**more)
        return lambda command: add(with_cluster(command))
