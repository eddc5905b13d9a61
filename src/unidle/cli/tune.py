"""``unidle tune``: code that makes training slower than it has to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unidle.cli.common import JsonOption, cannot_write, print_json, say, say_whole, show_table, warn
from unidle.cli.help import Commands
from unidle.cli.option_set import with_options
from unidle.cli.tune_fit import fit
from unidle.cli.tune_words import (
    ExcludeOption,
    IgnoreOption,
    PathsArgument,
    SelectOption,
    check_paths_exist,
    tune_settings,
)
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.tune.check import CheckResult
    from unidle.tune.registry import CodeFinding
    from unidle.tune.settings import TuneSettings

tune_app = Commands(help="Find code that makes training slower than it has to be.")
tune_app.command("fit")(fit)


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    from unidle.cli import tune_advise, tune_fix, tune_profile, tune_run, tune_top

    tune_app.add_typer(tune_advise.advise_app, name="advise")

    tune_app.command("fix")(tune_fix.fix)
    tune_app.command("profile")(tune_profile.profile)
    tune_app.command("run")(tune_run.run)
    tune_app.command("top")(tune_top.top)
    app.add_typer(tune_app, name="tune")


@dataclass(frozen=True, slots=True)
class TuneCheckOptions:
    """Options of the check, in the order of its help."""

    # fmt: off
    select: SelectOption = None
    ignore: IgnoreOption = None
    exclude: ExcludeOption = None
    baseline: Annotated[
        str | None, typer.Option("--baseline", metavar="FILE", show_default=False, help="Report only findings that are not in this file.")
    ] = None
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Write all findings to the file of --baseline.")
    ] = False
    form: Annotated[
        Literal["text", "json", "sarif"], typer.Option("--format", help="Form of the output: text, json or sarif (2.1.0).")
    ] = "text"
    as_json: JsonOption = False
    # fmt: on


@tune_app.command("check")
@with_options(options=TuneCheckOptions)
def check(paths: PathsArgument, options: TuneCheckOptions) -> None:
    """Find slow code in Python files and notebooks, without running them.

    Exit codes: 0 nothing found, 1 findings, 2 bad input, or a file that was named cannot be checked.
    """
    from unidle.tune.baseline import new_findings, read_baseline, write_baseline
    from unidle.tune.check import check_paths

    if options.write_baseline and options.baseline is None:
        raise BadInput("needs a file", field="--write-baseline", remedy="add --baseline FILE")
    check_paths_exist(paths)
    settings = tune_settings(paths, options.select, options.ignore, options.exclude)
    accepted = (
        read_baseline(Path(options.baseline)) if options.baseline and not options.write_baseline else None
    )
    result = check_paths(paths, settings)
    if options.write_baseline and options.baseline is not None:
        try:
            write_baseline(Path(options.baseline), result.findings)
        except OSError as error:
            raise cannot_write("--baseline", options.baseline, error) from error
        say(f"{options.baseline}: {counted(len(result.findings), 'finding')} accepted")
        found: Sequence[CodeFinding] = ()
    else:
        found = new_findings(result.findings, accepted) if accepted is not None else result.findings
        _show(found, result, settings, "json" if options.as_json else options.form)
    for one in result.skipped:
        warn(f"{one.file}{f':{one.line}' if one.line else ''} {one.why}; not checked")
    raise typer.Exit(2 if any(one.named for one in result.skipped) else 1 if found else 0)


def _show(
    found: Sequence[CodeFinding],
    result: CheckResult,
    settings: TuneSettings,
    form: Literal["text", "json", "sarif"],
) -> None:
    if form == "json":
        print_json([
            {
                "code": one.code, "file": one.file, "line": one.line, "column": one.column, "end_line": one.end_line,
                "message": one.message, "fixable": one.fixable, "url": one.url,
            }
            for one in found
        ])  # fmt: skip
    elif form == "sarif":
        from unidle import __version__
        from unidle.tune.registry import rules
        from unidle.tune.sarif import sarif

        chosen = [rules()[code] for code in settings.chosen(rules())]
        print_json(sarif(found, result.skipped, chosen, __version__))
    else:
        for one in found:
            say_whole(f"{one.file}:{one.line}:{one.column}: {one.code} {one.message}")
        by_code = Counter(one.code for one in found)
        seen = (
            f"{counted(len(found), 'finding')} of {counted(len(by_code), 'rule')}" if found else "no findings"
        )
        say(
            f"{seen} in {counted(result.files, 'file')}"
            + ("; `unidle tune rule CODE` explains a rule" if found else "")
        )


@tune_app.command("rule")
def rule(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE]", show_default=False, help="Code of a rule, such as UDL201; default: list all."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the page of a rule, or list all rules.

    A page has what the rule finds, slow and fast code, and what it costs.
    """
    from unidle.tune.pages import page_of
    from unidle.tune.registry import rules

    known = rules()
    if code is not None and code.upper() not in known:
        raise BadInput("is no rule", field="CODE", value=code, remedy="`unidle tune rule` lists the rules")
    chosen = [known[code.upper()]] if code is not None else list(known.values())
    if as_json:
        print_json([
            {"code": one.code, "name": one.name, "message": one.message, "severity": one.severity, "fixable": one.fixable, "url": one.url}
            for one in chosen
        ])  # fmt: skip
    elif code is not None:
        say_whole(page_of(chosen[0].code).rstrip())
    else:
        show_table(["code", "name", "message"], [[one.code, one.name, one.message] for one in chosen])
