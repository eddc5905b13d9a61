"""Every command line that a page shows is one that unidle has, with the options that it shows."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from unidle.cli.commands import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
TAKES_A_COMMAND = {"run", "submit"}  # what follows their first word that is no option is the job's own


def command_lines(text: str, *, blocks_only: bool = False) -> Iterator[str]:
    """Of code blocks and of code in a line."""
    fenced = shown = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced, shown = not fenced, "```text" in line or "```yaml" in line
            continue
        if fenced and shown:
            continue
        if fenced or line.startswith("    "):
            yield from re.findall(r"(?:^|[|;&(] ?|sudo )((?:\.venv/bin/)?unidle [^|;&#)]*)", line.strip())
        elif not blocks_only:
            yield from re.findall(r"`(?:sudo )?(unidle [^`]*)`", line)


def words_of(line: str) -> list[str]:
    try:
        return shlex.split(line.replace("...", " ").replace("…", " "))[1:]
    except ValueError:
        return []


@functools.cache
def command_line() -> Any:
    return typer.main.get_command(app())


def wrong_with(line: str) -> str:
    """What is wrong with a command line; empty where nothing is."""
    command = command_line()
    words = words_of(line)
    path = ["unidle"]
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        if words[0][:1].isdigit():
            return ""  # what `unidle --version` prints
        choices = words[0].split("|")  # `list|verify|prune` stands for each of them
        unknown = [choice for choice in choices if choice not in command.commands]
        if unknown:
            return "" if words[0].isupper() else f"{' '.join(path)} has no command {unknown[0]}"
        path.append(choices[0])
        command, words = command.commands[choices[0]], words[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {
        "-h",
        "--help",
    }
    flags = {name for each in command.params if getattr(each, "is_flag", False) for name in each.opts}
    known |= {"--version", "--install-completion", "--show-completion"} if len(path) == 1 else set()
    takes_value = False
    for word in words:
        if word == "--" or (
            path[1:] and path[1] in TAKES_A_COMMAND and not takes_value and word[0] not in "-["
        ):
            return (
                ""
                if word == "--" or not word.endswith((".yaml", ".yml", ".json"))
                else _rest(words, word, known)
            )
        name = word.strip("[]").split("=", 1)[0].split("|", 1)[0]
        takes_value = False
        if name.startswith("-") and len(name) > 1 and not name[1:2].isdigit():
            if name not in known and not (len(name) > 2 and name[1] != "-" and name[:2] in known):
                return f"{' '.join(path)} has no option {name}"
            takes_value = name not in flags and "=" not in word
    return ""


def _rest(words: list[str], job_file: str, known: set[str]) -> str:
    """Options may follow a job file."""
    after = words[words.index(job_file) + 1 :]
    names = [word.split("=", 1)[0] for word in after if word.startswith("--")]
    return next((f"unidle run has no option {name}" for name in names if name not in known), "")


def missing_in(line: str) -> set[str]:
    """Options that a command line of a code block needs and does not have."""
    command, words = command_line(), words_of(line)
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    needed = [each for each in command.params if each.required and each.param_type_name == "option"]
    given = {word.split("=", 1)[0] for word in words}
    return {each.opts[0] for each in needed if "-h" not in given and not given & set(each.opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_command_of_a_code_block_has_the_options_that_it_needs(page: Path) -> None:
    lines = [line for line in command_lines(page.read_text(), blocks_only=True) if "\\" not in line]
    assert not {line: missing for line in lines if (missing := missing_in(line))}


def test_a_command_line_without_an_option_that_it_needs_is_found() -> None:
    assert missing_in("unidle replay store fleet.db") == {"--policy"}
    assert not missing_in("unidle replay store --store fleet.db --policy=unidle")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_commands_and_options_that_exist(page: Path) -> None:
    found = {line: wrong for line in command_lines(page.read_text()) if (wrong := wrong_with(line))}
    assert not found


@pytest.mark.parametrize(
    "line",
    ["unidle lits", "unidle run --rank 4 train.py", "unidle guard drian n1", "unidle run job.yaml --rankz 2",
     "unidle ledger --since-when 1h"],
)  # fmt: skip
def test_a_command_line_that_unidle_does_not_have_is_found(line: str) -> None:
    assert wrong_with(line)
