"""``unidle logs``: what the ranks printed."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.cli.common import (
    JobArgument,
    StoreOption,
    data_dir,
    need_job,
    now_of,
    read_store,
    read_view,
    warn,
)
from unidle.cli.job_words import ranks_of
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.view.jobs import AttemptView


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("logs")(logs)


def logs(
    job: JobArgument = None,
    store: StoreOption = None,
    rank: Annotated[
        str | None,
        typer.Option(
            metavar="K[,K...]", show_default=False,
            help="Only these ranks, such as 0,2 or 0-3; default: all, with the rank at the start of each line.",
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="Number of the attempt; default: the last."),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", min=0, show_default=False, help="Only the last N of the lines."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", show_default=False,
            help="Only lines printed since then: 90 (seconds ago), 10m, 1h30m, or 2026-01-31T12:00.",
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="RE", show_default=False, help="Only lines that match; (?i) ignores case."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new output, across restarts.")
    ] = False,
) -> None:  # fmt: skip
    """Print the standard output and error of a job's ranks.

    Several ranks are merged in order of time. The time of a line is known to 250 ms; in a file that fills for hours, to
    1/4096 of that. With --grep, --tail counts the lines that match.
    """
    from unidle.cli.follow import LogFollower, Wanted
    from unidle.control.session import run_root

    match = _pattern(grep)
    opened = read_store(store)
    view = read_view(opened)
    found = need_job(view, job, started=True)
    since_ns = None if since is None else _moment(since, now_of(view))
    most = max([len(one.places) for one in found.attempts], default=found.spec.ranks)
    ranks = tuple(range(most)) if rank is None else ranks_of("--rank", rank, most)
    if not found.attempts:
        warn(f"{found.id} has not started yet" + (": waiting for its first line" if follow else ""))
    elif attempt is not None and not 1 <= attempt <= len(found.attempts):
        raise BadInput(
            "the job has no such attempt", field="--attempt", value=attempt, remedy=f"1 to {len(found.attempts)}"
        )  # fmt: skip
    else:
        _say_dropped_bytes(found.attempts[(attempt or len(found.attempts)) - 1], ranks)
    wanted = Wanted(since_ns, tail, match)
    root = run_root(opened, data_dir())
    LogFollower(root, found.id, ranks, sys.stdout.buffer, wanted, _say_dropped).run(opened, attempt, follow)
    opened.close()


def _say_dropped(rank: int, lines: int) -> None:
    sys.stdout.flush()  # before what follows them
    warn(f"rank {rank}: {counted(lines, 'line')} dropped: only the newest output of a rank is kept")


def _say_dropped_bytes(attempt: AttemptView, ranks: Sequence[int]) -> None:
    """Of logs of earlier versions, which did not count lines."""
    for rank in ranks:
        info = attempt.ranks[rank].info if rank < len(attempt.ranks) else {}
        dropped = info.get("log_dropped_bytes")
        if isinstance(dropped, int) and dropped and "log_dropped_lines" not in info:
            warn(f"rank {rank}: {dropped:,} bytes dropped: only the newest output of a rank is kept")


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        remedy = "see docs.python.org/3/library/re.html; a backslash takes a character as it is"
        raise BadInput(
            f"is not a regular expression: {error}", field="--grep", value=text, remedy=remedy
        ) from None


def _moment(text: str, now_ns: int) -> int:
    """``10m`` ago, or an ISO time (local where it has no zone)."""
    import datetime as dt

    from unidle.files.values import seconds_or_duration_ns

    try:
        return now_ns - seconds_or_duration_ns(text)
    except ValueError:
        pass
    try:
        return round(dt.datetime.fromisoformat(text).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise BadInput(
            "is not a time",
            field="--since",
            value=text,
            remedy="for instance 10m, 1h30m, or 2026-01-31T12:00",
        ) from None
