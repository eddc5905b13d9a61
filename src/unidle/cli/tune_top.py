"""``unidle tune top``: the jobs of a store whose slow code costs the most device time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unidle.cli.common import (
    JsonOption,
    StoreOption,
    print_json,
    read_store,
    read_view,
    say,
    show_table,
    warn,
)
from unidle.cli.ledger import SinceOption, UntilOption, window_of
from unidle.cli.option_set import with_options
from unidle.cli.tune_words import IgnoreOption, SelectOption, tune_settings
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.scope.model import Profile
    from unidle.tune.costs import CostedFinding

_HOUR_NS: Final = 3_600_000_000_000
_RUNNING: Final = frozenset(
    {"step", "serve", "start", "compile", "restore", "data_stall", "checkpoint", "evaluation"}
)
"""Groups and leaves of the ledger in which the program runs; without steps that anything sees, all of it is ``start``."""


@dataclass(frozen=True, slots=True)
class TuneTopOptions:
    """Options in the order of the help."""

    # fmt: off
    since: SinceOption = None
    until: UntilOption = None
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, max=10_000, help="At most so many jobs.")] = 20
    select: SelectOption = None
    ignore: IgnoreOption = None
    store: StoreOption = None
    as_json: JsonOption = False
    # fmt: on


@dataclass(frozen=True, slots=True)
class JobCost:
    """``hours``: device hours in which the program ran. Findings overlap, so the largest one alone is what is won back for certain."""

    job: str
    hours: float
    findings: tuple[CostedFinding, ...]

    @property
    def won(self) -> float:
        """Device hours that the largest finding of a rule has."""
        return self.hours * max((one.share for one in self.findings if one.code), default=0.0)


@with_options(options=TuneTopOptions)
def top(options: TuneTopOptions) -> None:
    """List the jobs whose slow code costs the most device time.

    From the profiles that `unidle up --profile` keeps, and the hours of the ledger. Rules are applied to the files of the profile that are on this machine.

    Exit codes: 0 shown, 2 bad input.
    """
    rows, without = _rows(options)
    rows = sorted((one for one in rows if one.findings), key=lambda one: (-one.won, one.job))[: options.count]
    if options.as_json:
        print_json([
            {
                "job": one.job, "device_hours": round(one.hours, 4), "won_back_hours": round(one.won, 4),
                "findings": [each.document() | {"hours": round(one.hours * each.share, 4)} for each in one.findings],
            }
            for one in rows
        ])  # fmt: skip
        return
    if rows:
        show_table(["won back, h", "of, h", "job", "largest", "where"], [_cells(one) for one in rows])
    else:
        say("no finding has 3 % of the time of a job")
    if without:
        warn(f"{counted(without, 'job')} without a profile; `unidle up --profile` keeps profiles of all jobs")


def _cells(one: JobCost) -> list[str]:
    most = max(one.findings, key=lambda each: (bool(each.code), each.share))
    where = f"{most.file.rpartition('/')[2]}:{most.line}"
    return [
        f"{one.won:.2f}",
        f"{one.hours:.2f}",
        one.job,
        f"{most.code or 'no rule'} {100 * most.share:.0f} %",
        where,
    ]


def _rows(options: TuneTopOptions) -> tuple[list[JobCost], int]:
    """Jobs with a profile, and the number of those that ran without."""
    from unidle.cli.tune_scope import past_profile
    from unidle.ledger.query import summary
    from unidle.store.profiles import ProfileShelf
    from unidle.store.sql import SqlStore
    from unidle.view.source import ledger_source

    opened = read_store(options.store)
    assert isinstance(opened, SqlStore)
    source = ledger_source(opened, read_view(opened))
    window = window_of(source.extent(), options.since, options.until)
    hours: dict[str, float] = {}
    for row in summary(source, window, ["job", "group", "leaf"]).groups:
        job, group, leaf = row.labels
        if job is not None and (group in _RUNNING or leaf in _RUNNING):
            hours[str(job)] = hours.get(str(job), 0.0) + row.ns / _HOUR_NS
    shelf = ProfileShelf(opened)
    found, without = [], 0
    for job, spent in hours.items():
        profile = past_profile(shelf, job, window)
        if profile is None:
            without += 1
        else:
            found.append(JobCost(job, spent, tuple(_costed(profile, options))))
    return found, without


def _costed(profile: Profile, options: TuneTopOptions) -> list[CostedFinding]:
    """Findings of the files that are on this machine; lines of others have no code."""
    from unidle.cli.tune_scope import files_of, of_profile
    from unidle.tune.costs import costed

    seen = of_profile(profile)
    files = files_of(seen)
    return costed(None, files, tune_settings(files or ["."], options.select, options.ignore, None), seen)
