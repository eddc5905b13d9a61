"""``unidle drill``: faults on purpose, in a real run, and what came of each."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from unidle.cli.common import JsonOption, data_dir, print_json, say, show, show_table, warn


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("drill")(drill)


def drill(
    file: Annotated[
        str, typer.Argument(metavar="FILE", show_default=False, help="Drill file; `-` reads standard input.")
    ],
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            metavar="PATH",
            show_default=False,
            envvar=None,
            help="Keep the log of the run in this SQLite file.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Inject faults into a real run, and measure each recovery. The output shows how fast each fault was
    detected and identified, and how fast the job recovered.

    The job has a store, checkpoints and a fleet of its own. It also runs once without faults, for comparison. Exit code 1:
    the job failed, its result differs, a fault did not happen, or the wrong fault was identified.
    """
    from unidle.drill import report_text
    from unidle.drill.conduct import conduct
    from unidle.drill.end_state import Cache
    from unidle.files.drill import load_drill

    plan = load_drill(file)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, leaves nothing behind
    report = conduct(plan, Cache(data_dir() / "drill"), warn, store=Path(store) if store else None)
    if as_json:
        print_json(report_text.as_object(report))
    else:
        show_table(report_text.HEADER, report_text.rows(report))
        say()
        for line in report_text.strip(report):
            show(line)
        say()
        for line in (*report_text.reasons(report), "", *report_text.summary(report)):
            say(line)
    sys.exit(0 if report.passed else 1)
