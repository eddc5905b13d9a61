"""Writing the pictures of a store: the page to a file, the waterfall as text."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unidle.report.collect import collect
from unidle.store.protocol import Store
from unidle.view.snapshot import load_view
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.ledger.answers import Summary


def write_report(store: Store, path: Path, job: str | None = None) -> None:
    """Write the page of one job, or of the whole store, in one piece (a torn page is never seen)."""
    from unidle.report.html import render

    page = render(collect(store, load_view(store), shown_address(store), job=job))
    fd, partial = tempfile.mkstemp(prefix=".report-", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(page)
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


def terminal_picture(store: Store, job: str | None, address: str) -> str:
    """The waterfall of one job's time on all devices."""
    from unidle.report.terminal import waterfall

    data = collect(store, load_view(store), address, job=job, details=False)
    return waterfall(data, _width(), _colour()).rstrip("\n")


def picture_of(store: Store, view: View, summary: Summary, where: Mapping[str, Any], address: str) -> str:
    """The waterfall of an answer that was already asked for."""
    from unidle.report.terminal import waterfall

    data = collect(store, view, address, summary=summary, where=where, details=False)
    return waterfall(data, _width(), _colour()).rstrip("\n")


def shown_address(store: Store) -> str:
    """The store's address as a user types it; never with a password."""
    return store.url.removeprefix("sqlite:///")


def _width() -> int:
    return min(shutil.get_terminal_size((80, 24)).columns, 100) if sys.stdout.isatty() else 80


def _colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
