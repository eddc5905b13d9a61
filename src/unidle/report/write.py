"""Writing the pictures of a store: the page to a file, the waterfall as text."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unidle.atomic import PRIVATE, replaced
from unidle.engine.local.ranks.rundir import path_part
from unidle.private import make_directory
from unidle.report.collect import CodesOf, collect, no_codes
from unidle.report.rank_output import RankOutput
from unidle.store.protocol import Store
from unidle.view.snapshot import load_view
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.ledger.answers import LedgerSummary


def write_report(
    store: Store, path: Path | None, output: RankOutput, job: str | None = None, data_dir: Path | None = None, mode: int = PRIVATE,
    codes: CodesOf = no_codes,
) -> Path:  # fmt: skip
    """Write the page of one job, or of the whole store, in one piece (a torn page is never seen).

    ``path`` None: a name next to the store, or in ``data_dir`` for a store that is not a file. ``output``: what ranks printed.
    ``mode``: of the file, whatever the umask. ``codes``: what slow code cost.
    Returns the absolute path. Errors: OSError if the file cannot be written.
    """
    from unidle.control.store_files import make_run_root, say_line
    from unidle.report.html import render

    if path is None:
        path = make_run_root(store, data_dir or Path()).parent / "reports" / f"{path_part(job or 'all')}.html"
        make_directory(path.parent, mended=say_line)
    path.parent.mkdir(parents=True, exist_ok=True)

    page = render(collect(store, load_view(store), shown_address(store), job=job, output=output, codes=codes))
    with replaced(path, mode) as stream:
        stream.write(page.encode())
    return path.absolute()


def terminal_summary(store: Store, job_id: str) -> str:
    """How a job ended, its steps, and where the time of its own devices went; a few lines."""
    from unidle.ledger.query import summary
    from unidle.report.job_summary import job_summary
    from unidle.view.source import ledger_source

    view = load_view(store)
    asked = summary(ledger_source(store, view), where={"job": [job_id]})
    return job_summary(view, view.jobs[job_id], asked, _width(), _colour())


def picture_of(
    store: Store, view: View, summary: LedgerSummary, where: Mapping[str, Any], address: str
) -> str:
    """The waterfall of an answer that was already asked for."""
    from unidle.report.terminal import waterfall

    data = collect(store, view, address, summary=summary, where=where)
    return waterfall(data, _width(), _colour()).rstrip("\n")


def shown_address(store: Store) -> str:
    """The store's address as a user types it; never with a password."""
    return store.url.removeprefix("sqlite:///")


def _width() -> int:
    return min(shutil.get_terminal_size((80, 24)).columns, 100) if sys.stdout.isatty() else 80


def _colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
