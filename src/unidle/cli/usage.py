"""What the parser of the command line refuses, as one of our errors: field, value and remedy on one line."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from itertools import takewhile
from typing import Final, cast

import typer

from unidle.cli.help import name_of
from unidle.errors import BadInput

# typer keeps the class itself in a private module, and not in the same one in each of its versions
USAGE_ERROR: Final = cast("type[Exception]", typer.BadParameter.__bases__[0])
_EXTRA: Final = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)")
_OTHER_NAMES: Final = {
    "ps": "list", "ls": "list", "jobs": "list", "status": "list", "squeue": "list", "kill": "cancel", "stop": "cancel",
    "scancel": "cancel", "delete": "rm", "remove": "rm", "sbatch": "submit", "srun": "run", "start": "run",
    "why": "explain", "describe": "show", "log": "logs", "nodes": "guard nodes", "version": "--version",
}  # fmt: skip
"""What the same is called elsewhere."""
_COMMAND: Final = re.compile(r"No such command '?(.*?)'?(?:\.|$)(?: Did you mean (.*)\?)?")


def is_help(error: Exception) -> bool:
    """Whether it is no error but the help of a group of commands that was called without one."""
    return type(error).__name__ == "NoArgsIsHelpError"


def in_one_line(error: Exception, words: Sequence[str], groups: Mapping[str, Sequence[str]]) -> BadInput:
    """The error for what was refused of ``words``, the command line without what follows ``--``.

    ``groups`` are commands that have commands below them, with these.
    """
    path = getattr(getattr(error, "ctx", None), "command_path", "") or _command(words, groups)
    shown = f"`{path} --help` lists its options"
    message = str(getattr(error, "message", "") or error).replace("\n", " ").strip()
    parameter = getattr(error, "param", None)
    if parameter is not None:
        return _of_parameter(error, parameter, message, words, shown)
    option = getattr(error, "option_name", None)
    if option is not None:
        return _of_option(error, option, message, path, shown)
    if found := _EXTRA.search(message):
        return BadInput(f"{path} takes no more arguments", field="arguments", value=found[1], remedy=shown)
    if found := _COMMAND.match(message):
        near = _elsewhere(found[1], path, groups) or (found[2] or "").replace("'", "`").replace(", ", " or ")
        meant = f"did you mean {near}?" if near else f"`{path} --help` lists them"
        return BadInput("no such command", field="COMMAND", value=found[1], remedy=meant)
    return BadInput(_lower(message), field=path, remedy=shown)


def _elsewhere(word: str, path: str, groups: Mapping[str, Sequence[str]]) -> str:
    """Where a command is that has another name here, or stands below a group; may be empty."""
    if path != "unidle":
        return ""
    if word in _OTHER_NAMES:
        return f"`unidle {_OTHER_NAMES[word]}`"
    return " or ".join(f"`unidle {group} {word}`" for group, commands in groups.items() if word in commands)


def _near(error: Exception, option: str) -> list[str]:
    """Options similar to the given one, the most similar first, by their current names."""
    from difflib import get_close_matches

    parameters = getattr(getattr(getattr(error, "ctx", None), "command", None), "params", ())
    named = {
        name: name_of(one) if name in one.opts else name
        for one in parameters
        for name in (*one.opts, *one.secondary_opts)
        if name.startswith("--")
    }
    return [*dict.fromkeys(named[name] for name in get_close_matches(option, named, 2))]


def _of_parameter(
    error: Exception, parameter: object, message: str, words: Sequence[str], shown: str
) -> BadInput:
    names = [name for name in getattr(parameter, "opts", ()) if name.startswith("-")]
    field = names[0] if names else str(getattr(parameter, "metavar", None) or getattr(parameter, "name", ""))
    if type(error).__name__ == "MissingParameter":
        return BadInput("is missing", field=field, remedy=shown)
    value = _given(names, words)
    if value is None and isinstance(name := getattr(parameter, "envvar", None), str):
        value = os.environ.get(name)
        field += f" (from {name})"
    return BadInput(_lower(message), field=field, value=value, remedy=shown)


def _of_option(error: Exception, option: str, message: str, path: str, shown: str) -> BadInput:
    if type(error).__name__ == "NoSuchOption":
        near = _near(error, option)
        remedy = f"did you mean {' or '.join(near)}?" if near else f"`{path} --help` lists them"
        return BadInput(f"{path} has no such option", field=option, remedy=remedy)
    problem = "takes no value" if "not take a value" in message else "needs a value"
    return BadInput(problem, field=option, remedy=shown)


def _command(words: Sequence[str], groups: Container[str]) -> str:
    """The command that is meant, where the error does not say."""
    names = [*takewhile(lambda word: not word.startswith("-"), words)]
    return " ".join(["unidle", *names[: 2 if names and names[0] in groups else 1]])


def _given(names: Sequence[str], words: Sequence[str]) -> str | None:
    """The last value that an option was given on the command line."""
    for at in range(len(words) - 1, -1, -1):
        for name in names:
            if words[at] == name and at + 1 < len(words):
                return words[at + 1]
            if words[at].startswith(f"{name}="):
                return words[at][len(name) + 1 :]
            if len(name) == 2 and words[at].startswith(name) and words[at] != name:
                return words[at][2:]
    return None


def _lower(message: str) -> str:
    """``Input should be a valid integer, unable to ...`` becomes ``must be a valid integer``."""
    said = message.rstrip(".")
    if said.startswith("Input should be "):
        return "must be " + said.removeprefix("Input should be ").split(", unable")[0]
    return said[:1].lower() + said[1:]
