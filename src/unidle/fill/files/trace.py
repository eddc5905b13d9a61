"""CSV files of prompts: their lengths, and for a trace when they arrive."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from typing import Final

from unidle.errors import BadInput
from unidle.files.document import BadFile
from unidle.files.load import read_text, source_name
from unidle.fill.files.file import TOKENS_MOST
from unidle.fill.simulate.arrivals import TracedPrompt

PROMPTS_MOST: Final = 1_000_000
_SIZE: Final = 64 << 20
_COLUMNS: Final = ("arrival_s", "tokens", "priority", "slo_ttft_ms")


def load_lengths(path: str) -> tuple[int, ...]:
    """The column ``tokens`` of a CSV file. Errors: :class:`unidle.errors.BadInput`, with the line."""
    return tuple(
        round(_number(path, line, row, "tokens", _whole(1, TOKENS_MOST)))
        for line, row in _rows(path, ("tokens",))
    )


def load_trace(path: str) -> tuple[TracedPrompt, ...]:
    """Arrivals, lengths, and where the file has them priorities and limits. Errors: :class:`unidle.errors.BadInput`."""
    found = []
    for line, row in _rows(path, ("arrival_s", "tokens")):
        priority, slo = row.get("priority", ""), row.get("slo_ttft_ms", "")
        found.append(
            TracedPrompt(
                _number(path, line, row, "arrival_s", lambda value: 0 <= value <= 1e6),
                round(_number(path, line, row, "tokens", _whole(1, TOKENS_MOST))),
                round(_number(path, line, row, "priority", _whole(-100, 100))) if priority else 0,
                _number(path, line, row, "slo_ttft_ms", lambda value: 0 < value <= 1e9) if slo else None,
            )
        )
    return tuple(found)


def _whole(least: int, most: int) -> Callable[[float], bool]:
    return lambda value: value == int(value) and least <= value <= most


def _rows(path: str, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with their lines, from 1; blank lines are left out."""
    reader = csv.reader(io.StringIO(read_text(path, what="prompts", limit_bytes=_SIZE)))
    count = 0
    try:
        header = [name.strip() for name in next(reader, [])]
        for name in needed:
            if name not in header:
                raise BadFile(
                    source_name(path), "the column is missing", field=name, value=",".join(header)[:80],
                    remedy=f"the first line names the columns: {','.join(_COLUMNS)}",
                )  # fmt: skip
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            count += 1
            if count > PROMPTS_MOST:
                raise BadFile(
                    source_name(path), f"has more than {PROMPTS_MOST:,} prompts", remedy="use a part of it"
                )
            yield reader.line_num, {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
    except csv.Error as error:
        raise BadFile(
            f"{source_name(path)}:{reader.line_num}", f"is not CSV: {error}", remedy="correct the line"
        ) from error
    if not count:
        raise BadFile(
            source_name(path), "has no prompts", field="tokens", remedy="add a line for each prompt"
        )


def _number(path: str, line: int, row: dict[str, str], name: str, fits: Callable[[float], bool]) -> float:
    text = row.get(name, "")
    try:
        value = float(text)
        good = math.isfinite(value) and fits(value)
    except ValueError:
        good = False
    if not good:
        raise _bad(path, line, name, text)
    return value


def _bad(path: str, line: int, name: str, text: str) -> BadInput:
    says = {
        "arrival_s": "a number of seconds from 0 to 10^6", "tokens": f"a whole number from 1 to {TOKENS_MOST:,}",
        "priority": "a whole number from -100 to 100", "slo_ttft_ms": "a number of milliseconds over 0",
    }  # fmt: skip
    return BadFile(
        f"{source_name(path)}:{line}",
        f"must be {says[name]}",
        field=name,
        value=text,
        remedy="correct the line",
    )
