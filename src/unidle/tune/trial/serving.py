"""Programs that serve a model: where requests begin, marked in a copy of the code, and what their times were."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.check import linked_sources
from unidle.tune.rules.decoding import generates
from unidle.tune.rules.serving import handlers
from unidle.tune.settings import TuneSettings

_MARK: Final = '__import__("tune_serving").begin()'
_SLOW_FIRST: Final = 3.0
_FEWEST: Final = 4


class RequestTimes(NamedTuple):
    """Where a request began, its seconds until the first token and from there to the last, and the number of tokens."""

    file: str
    line: int
    first_s: float
    rest_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class ServedTimes:
    """Milliseconds to the first token (TTFT) and for each further one (TPOT), as median and 95th percentile; ``tpot`` is None without any."""

    requests: int
    ttft_ms: float
    ttft_p95_ms: float
    first_ttft_ms: float
    tpot_ms: float | None
    tpot_p95_ms: float | None

    def document(self) -> dict[str, float | int | None]:
        """As the command gives it with ``--json``."""
        return {
            "requests": self.requests, "ttft_ms": round(self.ttft_ms, 3), "ttft_p95_ms": round(self.ttft_p95_ms, 3),
            "first_ttft_ms": round(self.first_ttft_ms, 3), "tpot_ms": _rounded(self.tpot_ms), "tpot_p95_ms": _rounded(self.tpot_p95_ms),
        }  # fmt: skip

    def text(self) -> str:
        """One line."""
        first = f"first token after {self.ttft_ms:.1f} ms (95 %: {self.ttft_p95_ms:.1f})"
        rest = f", then {self.tpot_ms:.1f} ms for each (95 %: {self.tpot_p95_ms:.1f})" if self.tpot_ms is not None else ""  # fmt: skip
        return f"{first}{rest}"


def served_times(requests: Sequence[RequestTimes]) -> ServedTimes | None:
    """Of all requests; None without any."""
    if not requests:
        return None
    first = [1000 * one.first_s for one in requests]
    each = [1000 * one.rest_s / (one.tokens - 1) for one in requests if one.tokens > 1]
    return ServedTimes(
        len(requests), statistics.median(first), _p95(first), first[0],
        statistics.median(each) if each else None, _p95(each) if each else None,
    )  # fmt: skip


def is_cold(times: ServedTimes) -> bool:
    """Whether the first request waited far longer than others do."""
    return times.requests >= _FEWEST and times.first_ttft_ms > _SLOW_FIRST * times.ttft_ms


def mark_requests(folder: Path) -> int:
    """Mark where requests begin in the Python files of a copy; lines keep their numbers. Returns how many places there are."""
    count = 0
    for source, facts in linked_sources([str(folder)], TuneSettings())[0]:
        if source.cells is not None or Path(source.file).read_bytes() != facts.text.encode(
            "utf-8", "surrogatepass"
        ):
            continue  # a notebook, or a file in another encoding
        edits = [edit for one in request_functions(facts) if (edit := _first_place(one)) is not None]
        if edits:
            _write(Path(source.file), facts.text, edits)
            count += len(edits)
    return count


def request_functions(facts: SourceFacts) -> list[FunctionFacts]:
    """Handlers, and functions that generate, or that call one of these once: what is called again and again is one request."""
    found: list[FunctionFacts] = []
    waiting = [*handlers(facts), *dict.fromkeys(facts.function_of(call) for call in generates(facts))]
    seen = set(waiting)
    while waiting:
        one = waiting.pop()
        if one.node is None:
            continue
        outer = [facts.function_of(call) for call in facts.callers(one) if not facts.loops(call)]
        outer = [each for each in outer if each.node is not None]
        waiting += [each for each in outer if each not in seen]
        seen.update(outer)
        if not outer:
            found.append(one)
    return found


class _Insert(NamedTuple):
    """Text before a node, and after its end."""

    node: ast.expr | ast.stmt
    before: str
    after: str


def _first_place(function: FunctionFacts) -> _Insert | None:
    return _in_body(function.node.body) if function.node is not None else None


def _in_body(body: Sequence[ast.stmt]) -> _Insert | None:
    """At the first statement that can be marked; None where a loop of unknown rounds or nothing of use comes first."""
    for statement in body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.Try | ast.TryStar):
            return _in_body(statement.body)
        if isinstance(statement, ast.While):
            return None
        head = _head(statement)
        return _Insert(statement, f"{_MARK}; ", "") if head is None else _Insert(head, f"({_MARK}, ", ")[1]")
    return None


def _head(statement: ast.stmt) -> ast.expr | None:
    """What a compound statement computes first."""
    if isinstance(statement, ast.For | ast.AsyncFor):
        return statement.iter
    if isinstance(statement, ast.If):
        return statement.test
    if isinstance(statement, ast.With | ast.AsyncWith):
        return statement.items[0].context_expr
    return statement.subject if isinstance(statement, ast.Match) else None


def _write(path: Path, text: str, edits: Sequence[_Insert]) -> None:
    lines = [line.encode() for line in text.split("\n")]
    inserts = []
    for one in edits:
        inserts.append((one.node.lineno, one.node.col_offset, one.before))
        if one.after and one.node.end_lineno is not None and one.node.end_col_offset is not None:
            inserts.append((one.node.end_lineno, one.node.end_col_offset, one.after))
    for number, column, added in sorted(inserts, reverse=True):
        line = lines[number - 1]
        lines[number - 1] = line[:column] + added.encode() + line[column:]
    path.write_bytes(b"\n".join(lines))


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, -(-95 * len(ordered) // 100) - 1)]


def _rounded(value: float | None) -> float | None:
    return round(value, 3) if value is not None else None
