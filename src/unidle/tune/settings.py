"""Settings of the check: ``[tool.unidle.tune]`` in pyproject.toml, and options that override them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from unidle.errors import BadInput

_KEYS: Final = ("select", "ignore", "exclude", "per-file-ignores", "hot-functions")


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """``select`` and ``ignore``: codes or beginnings of codes, ``ALL`` for all. ``hot_functions`` run in each training step."""

    select: tuple[str, ...] = ("ALL",)
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hot_functions: tuple[str, ...] = ()

    def chosen(self, codes: Iterable[str]) -> list[str]:
        """The codes that are selected and not ignored; the longer beginning wins, as in ruff."""
        found = []
        for code in codes:
            wanted, unwanted = _length(code, self.select), _length(code, self.ignore)
            if wanted > unwanted:
                found.append(code)
        return found

    def ignored_in(self, file: str, code: str) -> bool:
        """Whether a code is ignored in a file by its name or path."""
        name = file.rpartition("/")[2]
        return any(
            _length(code, codes) >= 0 and (fnmatch(file, pattern) or fnmatch(name, pattern) or fnmatch(file, f"*/{pattern}"))
            for pattern, codes in self.per_file_ignores.items()
        )  # fmt: skip


def _length(code: str, beginnings: Iterable[str]) -> int:
    """The length of the longest beginning of a code among these; -1: none."""
    return max(
        (0 if one == "ALL" else len(one) for one in beginnings if one == "ALL" or code.startswith(one)),
        default=-1,
    )


def read_settings(start: Path, known: Sequence[str]) -> TuneSettings:
    """Settings of the nearest pyproject.toml that has them, at or above a path. Errors: :class:`BadInput`."""
    place = start.absolute()
    for folder in (place, *place.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            tool = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
        except (OSError, ValueError) as error:
            raise BadInput(f"cannot be read: {error}", field=str(file), remedy="correct the file") from error
        table = tool.get("unidle", {}).get("tune") if isinstance(tool.get("unidle", {}), dict) else None
        if table is not None:
            return _settings(table, f"{file} [tool.unidle.tune]", known)
    return TuneSettings()


def _settings(table: object, field_name: str, known: Sequence[str]) -> TuneSettings:
    if not isinstance(table, dict):
        raise BadInput("is not a table", field=field_name, value=table, remedy='such as select = ["UDL2"]')
    for key in table:
        if key not in _KEYS:
            raise BadInput(
                "is not a setting", field=f"{field_name} {key}", remedy=f"use one of {', '.join(_KEYS)}"
            )
    by_file = table.get("per-file-ignores", {})
    if not isinstance(by_file, dict):
        raise BadInput("is not a table of lists", field=f"{field_name} per-file-ignores", value=by_file)
    lists = {
        key: _strings(table[key], f"{field_name} {key}")
        for key in _KEYS
        if key in table and key != "per-file-ignores"
    }
    ignores = {
        pattern: _strings(codes, f"{field_name} per-file-ignores {pattern}")
        for pattern, codes in by_file.items()
    }
    for key in ("select", "ignore"):
        check_codes(lists.get(key, ()), f"{field_name} {key}", known)
    for pattern, codes in ignores.items():
        check_codes(codes, f"{field_name} per-file-ignores {pattern}", known)
    return TuneSettings(
        lists.get("select", ("ALL",)), lists.get("ignore", ()), lists.get("exclude", ()), ignores,
        lists.get("hot-functions", ()),
    )  # fmt: skip


def _strings(value: object, field_name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadInput("is not a list of strings", field=field_name, value=value)
    return tuple(value)


def check_codes(codes: Iterable[str], field_name: str, known: Sequence[str]) -> None:
    """Errors: :class:`BadInput` for one that is the beginning of no code."""
    for code in codes:
        if code != "ALL" and not any(one.startswith(code) for one in known if code):
            raise BadInput(
                "is no rule, and the beginning of none",
                field=field_name,
                value=code,
                remedy="`unidle tune rule` lists the rules",
            )


def with_options(
    settings: TuneSettings, select: Sequence[str], ignore: Sequence[str], exclude: Sequence[str]
) -> TuneSettings:
    """Options of the command line: ``select`` replaces that of the file, the others add to it."""
    return replace(
        settings, select=tuple(select) or settings.select, ignore=(*settings.ignore, *ignore), exclude=(*settings.exclude, *exclude),
    )  # fmt: skip
