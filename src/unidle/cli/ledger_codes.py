"""The ledger by slow code: its sums, the profiles of its jobs, and the rules of `unidle tune`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from unidle.ledger.answers import LedgerSummary
    from unidle.ledger.by_code import CodeWeights
    from unidle.ledger.money import Prices
    from unidle.ledger.select import TimeRange
    from unidle.ledger.sources import LedgerSource
    from unidle.report.model import CodeLine
    from unidle.store.protocol import Store

_NS: Final = 1e9


def summary_by_code(
    store: Store, source: LedgerSource, window: TimeRange, by: Sequence[str], where: Mapping[str, Collection[str | int]], prices: Prices
) -> LedgerSummary:  # fmt: skip
    """A summary by dimensions of which one is the code. Errors: BadInput for one that does not exist."""
    from unidle.ledger.by_code import CODE, NEEDED, leaves_with_time, split_by_code
    from unidle.ledger.query import summary

    others = [name for name in dict.fromkeys([*by, *NEEDED]) if name != CODE]
    asked = summary(source, window, others, where=where, prices=prices)
    jobs = {str(job) for one in asked.groups if (job := one.labels[others.index("job")]) is not None}
    there = leaves_with_time(summary(source, window, NEEDED) if where else asked)
    return split_by_code(asked, by, code_weights(store, jobs, window), there)


def code_weights(store: Store, jobs: Collection[str], window: TimeRange) -> dict[str, CodeWeights]:
    """By job what its profiles say. Rules are applied to files that are on this machine; jobs without profiles are left out."""
    from unidle.cli.tune_scope import files_of, of_profile, past_profile
    from unidle.cli.tune_words import tune_settings
    from unidle.store.profiles import ProfileShelf
    from unidle.store.sql import SqlStore
    from unidle.tune.costs import seconds_by_code

    if not isinstance(store, SqlStore):
        return {}
    shelf = ProfileShelf(store)
    found: dict[str, CodeWeights] = {}
    for job in sorted(jobs):
        profile = past_profile(shelf, job, window)
        if profile is None:
            continue
        seen = of_profile(profile)
        if files := files_of(seen):
            seconds = seconds_by_code(None, files, tune_settings(files, None, None, None), seen)
            found[job] = {key: round(value * _NS) for key, value in seconds.items()}
    return found


def code_lines(
    store: Store, source: LedgerSource, window: TimeRange, where: Mapping[str, Collection[str | int]], prices: Prices
) -> tuple[CodeLine, ...]:  # fmt: skip
    """For the report: each code with the job that has most of it, most time first. None if no code is known."""
    from unidle.report.model import CodeLine
    from unidle.tune.registry import rules

    found = summary_by_code(store, source, window, ["code", "job"], where, prices)
    by_code: dict[str, list[tuple[int, str, int | None]]] = {}
    for one in found.groups:
        code, job = one.labels
        if code is not None:
            by_code.setdefault(str(code), []).append((one.ns, str(job), one.cost_micro))
    lines = [
        CodeLine(
            code, rules()[code].message, sum(ns for ns, _, _ in jobs), max(jobs)[1], len(jobs),
            sum(cost or 0 for _, _, cost in jobs) / 1e6 if found.cost is not None else None,
        )
        for code, jobs in by_code.items()
    ]  # fmt: skip
    return tuple(sorted(lines, key=lambda line: (-line.ns, line.code)))
