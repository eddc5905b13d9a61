"""``unidle logs``: what the ranks printed."""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unidle.cli.common import (
    JobArgument,
    StoreOption,
    need_job,
    now_of,
    read_store,
    read_view,
    store_address,
    warn,
)
from unidle.cli.job_words import ranks_of
from unidle.cli.lines import for_terminal
from unidle.cli.option_set import with_options
from unidle.cli.times import moment
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.api.logs import LogSelection
    from unidle.store.protocol import Store
    from unidle.view.jobs import AttemptView, JobView

_ASK_EVERY_S: Final = 0.2


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("logs")(logs)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which output is shown, in the order of the help."""

    # fmt: off
    rank: Annotated[
        str | None,
        typer.Option(
            metavar="K[,K...]", show_default=False,
            help="Only these ranks, such as 0,2 or 0-3; default: all, with the rank at the start of each line.",
        ),
    ] = None
    attempt: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="Number of the attempt; default: the last."),
    ] = None
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", min=0, show_default=False, help="Only the last N lines."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", show_default=False,
            help="Only lines printed since then: 90 (seconds ago), 10m, 1h30m, or 2026-01-31T12:00.",
        ),
    ] = None
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="RE", show_default=False, help="Only lines that match; (?i) ignores case."),
    ] = None
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new output, across restarts.")
    ] = False
    # fmt: on


@with_options(options=LogOptions)
def logs(job: JobArgument = None, store: StoreOption = None, *, options: LogOptions) -> None:
    """Print the standard output and error of a job's ranks.

    Several ranks are merged in order of time. Times of lines are accurate to 250 ms; in a file that fills for hours, to
    1/4096 of that. With --grep, --tail counts the lines that match.
    """
    from unidle.api.job_watch import JobWatch
    from unidle.api.logs import LogSelection

    match = _pattern(options.grep)
    opened = read_store(store)
    view = read_view(opened)
    found = need_job(view, job, started=True)
    since_ns = None if options.since is None else moment("--since", options.since, now_of(view), plain="s")
    ranks = _chosen_ranks(found, options)
    wanted = LogSelection(since_ns, options.tail, match)
    if options.follow:
        with JobWatch(store_address(store), found.id) as watch:
            _copy(watch.store, watch.news, found.id, ranks, options.attempt, wanted, follow=True)
    else:
        _copy(opened, lambda: found, found.id, ranks, options.attempt, wanted, follow=False)


def _chosen_ranks(job: JobView, options: LogOptions) -> tuple[int, ...]:
    """The ranks, after warnings of what there is no output of. Errors: BadInput for an attempt that is none."""
    attempts, attempt = job.attempts, options.attempt
    most = max([len(one.places) for one in attempts], default=job.spec.ranks)
    ranks = tuple(range(most)) if options.rank is None else ranks_of("--rank", options.rank, most)
    if not attempts:
        warn(f"{job.id} has not started yet" + (": waiting for its first line" if options.follow else ""))
    elif attempt is not None and not 1 <= attempt <= len(attempts):
        raise BadInput(
            "the job has no such attempt", field="--attempt", value=attempt, remedy=f"1 to {len(attempts)}"
        )
    else:
        _say_dropped_bytes(attempts[(attempt or len(attempts)) - 1], ranks)
    return ranks


def _copy(
    store: Store, news: Callable[[], JobView | None], job: str, ranks: Sequence[int], attempt: int | None,
    wanted: LogSelection, *, follow: bool,
) -> None:  # fmt: skip
    """Copy what was printed to standard output; ``follow`` continues until the job, or the one attempt, has
    ended. ``news`` is the job as it is at each call.
    """
    from unidle.api.logs import Output

    out = sys.stdout.buffer
    raw = len(ranks) == 1 and wanted.match is None  # bytes as they are
    terminal = not raw and out.isatty()
    output = Output(store, job, ranks, attempt=attempt, raw=raw, wanted=wanted, dropped=_say_dropped)
    try:
        while True:
            found = news()
            for piece in output.new(found, once=not follow):
                out.write(piece if raw else (for_terminal(piece).encode() if terminal else piece) + b"\n")
            out.flush()
            if not follow or output.over or (found is not None and found.terminal):
                return
            time.sleep(_ASK_EVERY_S)
    finally:
        for rank, why in sorted(output.missing.items()):
            warn(f"rank {rank}: its output cannot be read now: {why}")
        output.close()


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
