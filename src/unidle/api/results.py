"""Results of a job's methods: text for people, plain data or rows for programs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from unidle.errors import BadInput

if TYPE_CHECKING:
    import polars as pl

    from unidle.ledger.answers import LedgerSummary
    from unidle.scope.bottlenecks import Machine
    from unidle.scope.model import Profile
    from unidle.store.protocol import Store
    from unidle.view.state import View


class _Shown:
    """Prints as its text, in a terminal and in a notebook."""

    text: str

    __slots__ = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(_Shown):
    """``text`` for people; ``data`` is what ``unidle explain --json`` prints."""

    text: str
    data: dict[str, Any] = field(compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class Profiled(_Shown):
    """``text`` is the first screen of ``unidle profile``; ``data`` is what its ``--json`` prints."""

    text: str
    data: dict[str, Any] = field(compare=False)
    profile: Profile = field(compare=False)

    @classmethod
    def of(cls, profile: Profile, machine: Machine | None) -> Self:
        """With the built-in rules."""
        from unidle.scope.profile_json import answer
        from unidle.scope.rules_file import all_rules
        from unidle.scope.screen import screen
        from unidle.scope.summary import report_of

        report = report_of(profile, all_rules(), machine)
        return cls("\n".join(screen(report)), answer(report), profile)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON that ``unidle profile --from`` reads."""
        content = {**self.data, **self.profile.to_json()}
        content["thread_budgets"] = self.data["threads"]
        target = Path(path)
        try:
            target.write_text(json.dumps(content) + "\n", encoding="utf-8")
        except OSError as error:
            raise BadInput(
                f"cannot be written: {error.strerror}", field="path", value=str(path), remedy="name another place",
            ) from error  # fmt: skip
        return target


def explanation(story: dict[str, Any]) -> Explanation:
    """The story of :func:`unidle.control.queries.describe.explain`, with the words of ``unidle explain``."""
    from unidle.control.queries.explanation import story_lines

    return Explanation("\n".join(story_lines(story)), story)


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """Device time by some dimensions."""

    by: tuple[str, ...]
    summary: LedgerSummary

    def rows(self, form: str) -> pl.DataFrame | list[dict[str, Any]]:
        """As a Polars frame or dicts. Errors: BadInput for another form, or without Polars."""
        if form == "dict":
            return self._dicts()
        if form != "polars":
            raise BadInput("is not a form of rows", field="rows", value=form, remedy="polars or dict")
        try:
            import polars as pl
        except ModuleNotFoundError as error:
            raise BadInput(
                "needs Polars, which is not installed", field="rows", value=form,
                remedy="pip install 'unidle[polars]', or rows=\"dict\"",
            ) from error  # fmt: skip

        schema: dict[str, Any] = {
            **{name: pl.Int64 if name == "attempt" else pl.String for name in self.by},
            "ns": pl.Int64, "seconds": pl.Float64, "percent": pl.Float64, "cost": pl.Float64,
        }  # fmt: skip
        return pl.DataFrame(self._dicts(), schema=schema)

    def _dicts(self) -> list[dict[str, Any]]:
        whole = self.summary.capacity_ns
        return [
            {
                **dict(zip(self.by, group.labels, strict=True)),
                "ns": group.ns,
                "seconds": group.ns / 1e9,
                "percent": 100 * group.ns / whole if whole else 0.0,
                "cost": None if group.cost_micro is None else group.cost_micro / 1e6,
            }
            for group in self.summary.groups
        ]


def ledger_rows(store: Store, view: View, job: str, by: list[str]) -> LedgerRows:
    """The ledger of one job. Errors: BadInput for an unknown dimension."""
    from unidle.ledger.query import summary
    from unidle.view.source import ledger_source, prices

    if not by:
        raise BadInput("names no dimension", field="by", value=by, remedy="for instance by=('leaf',)")
    found = summary(ledger_source(store, view), None, by, where={"job": [job]}, prices=prices(view))
    return LedgerRows(found.by, found)
