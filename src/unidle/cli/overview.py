"""``unidle --help`` and ``unidle --version``. They are formatted here, because typer takes 50 ms to import."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from textwrap import wrap

from unidle import __version__
from unidle.cli.index import COMMANDS, EXIT_CODES, SECTIONS

DESCRIPTION = "Keeps every GPU-second of a training fleet at work, and shows where each one went."
WIDEST = 100
VERSION_HELP = "Print the version."
MISSING = {
    "span": "Train across data centres (not installed).",
    "fill": "Run prefill in the bubbles of training (not installed).",
}
_NARROWEST = 50
_OPTIONS = (
    ("--version", VERSION_HELP),
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Show completion for the current shell, to copy it or customize the installation."),
    ("-h, --help", "Show this message and exit."),
)


def answer(arguments: Sequence[str]) -> str | None:
    """What a command line without a command prints; None for any other."""
    if list(arguments) in (["--help"], ["-h"]):
        columns = shutil.get_terminal_size().columns
        return overview(max(min(columns, WIDEST) - 2, _NARROWEST))
    return version() if list(arguments) == ["--version"] else None


def version() -> str:
    return f"unidle {__version__}\n"


def overview(width: int) -> str:
    """The help of ``unidle`` in lines of at most ``width`` columns."""
    names = max(map(len, COMMANDS))
    lines = ["Usage: unidle [OPTIONS] COMMAND [ARGS]...", ""]
    lines += wrap(DESCRIPTION, width, initial_indent="  ", subsequent_indent="  ")
    lines += _section("Options", _OPTIONS, width)
    for title, commands in SECTIONS.items():
        lines += _section(title, [(name.ljust(names), short_help(name)) for name in commands], width)
    lines += _section("Exit codes", [(str(code), text) for code, text in EXIT_CODES.items()], width)
    return "\n".join([*lines, "", "`unidle COMMAND --help` describes a command.", ""])


def short_help(name: str) -> str:
    """The line of a command."""
    if name in MISSING and find_spec(f"unidle.{name}") is None:
        return MISSING[name]
    return COMMANDS[name][1]


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    yield from ("", f"{title}:")
    rows = list(rows)
    first = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        begin, *more = wrap(text, max(width - first - 2, 10))
        yield f"  {name:<{first}}{begin}"
        yield from (" " * (first + 2) + line for line in more)
