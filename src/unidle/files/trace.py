"""Reads a job trace as CSV: one line per job, amounts of the whole job.

Columns, in any order: ``job`` (a name of its own), ``submit_s`` and ``duration_s`` (seconds, the latter without
any waiting), ``gpus`` (of the whole job, the same number for each rank), ``cpu_milli`` and ``memory_mib`` (of the
whole job), ``model`` (of the GPU; several with ``|`` between them), ``queue``, ``priority`` (higher first),
``preemptible`` (true or false) and ``ranks``. All must be there; a cell from ``cpu_milli`` on may be empty. There
may be ``estimate_s``, ``user``, ``name`` (jobs of one user and name are one kind of job) and ``min_runtime_s``,
as in the job file; any other column is refused, for what it means would be lost.
"""

from __future__ import annotations

import csv
import difflib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TextIO, TypeVar

from unidle.errors import BadInput
from unidle.files.document import BadFile, printable
from unidle.files.load import opened_text, source_name
from unidle.words import counted

COLUMNS: Final = (
    "job", "submit_s", "duration_s", "gpus", "cpu_milli", "memory_mib", "model", "queue", "priority",
    "preemptible", "ranks",
)  # fmt: skip
OPTIONAL: Final = ("estimate_s", "user", "name", "min_runtime_s")
JOBS_LIMIT: Final = 5_000_000
_LATEST_S: Final = 9e9  # what 63 bits of ns hold, with room for a duration as long
_LONGEST_S: Final = 10 * 365 * 86_400
_MOST: Final = 10**9
_NAME_LENGTH: Final = 253
_YES_NO: Final = {
    **dict.fromkeys(("true", "yes", "1"), True),
    **dict.fromkeys(("false", "no", "0"), False),
}

_T = TypeVar("_T")
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Renames:
    """``queues`` and ``models``: by the name that the jobs have, the one to read instead."""

    queues: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    def queue(self, name: str) -> str:
        return self.queues.get(name, name)

    def of_models(self, names: Iterable[str]) -> tuple[str, ...]:
        """In the same order, each once."""
        return tuple(dict.fromkeys(self.models.get(name, name) for name in names))

    def check(self, queues: Iterable[str], models: Iterable[str]) -> None:
        """:class:`BadInput` for a name that no job has: it is a slip, and would do nothing."""
        asked = (("--queue-map", self.queues, set(queues)), ("--model-map", self.models, set(models)))
        for option, names, known in asked:
            strange = next((name for name in names if name not in known), None)
            if strange is not None:
                has = ", ".join(sorted(known)[:_SHOWN]) or "none"
                raise BadInput("no job names it", field=option, value=strange, remedy=f"jobs name {has}")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One line. ``gpus``, ``cpu_milli`` and ``memory_bytes`` are of the whole job; ``line`` counts from 1.

    Each rank gets its part of them, that of CPU and memory rounded down, so that all ranks together never request
    more than the job.
    """

    line: int
    job: str
    submit_ns: int
    duration_ns: int
    gpus: int
    ranks: int
    cpu_milli: int = 0
    memory_bytes: int = 0
    models: tuple[str, ...] = ()
    queue: str = "default"
    priority: int = 0
    preemptible: bool = False
    estimate_s: float | None = None
    user: str = ""
    name: str = ""
    min_runtime_s: float = 0.0

    @property
    def gpus_each(self) -> int:
        """GPUs of one rank."""
        return self.gpus // self.ranks

    @property
    def cpu_milli_each(self) -> int:
        """Thousandths of cores of one rank."""
        return self.cpu_milli // self.ranks

    @property
    def memory_bytes_each(self) -> int:
        """Memory of one rank."""
        return self.memory_bytes // self.ranks


@dataclass(frozen=True, slots=True)
class JobTrace:
    """Jobs in the order of the file, which ``source`` names in errors."""

    source: str
    jobs: tuple[TraceJob, ...]

    def error(self, job: TraceJob, field: str, problem: str, value: object, remedy: str) -> BadFile:
        """An error about one field of one line."""
        return BadFile(f"{self.source}:{job.line}", problem, field=field, value=value, remedy=remedy)


def load_trace(path: str | os.PathLike[str], renames: Renames | None = None) -> JobTrace:
    """The jobs of the CSV file ``path``, with other names where ``renames`` has them.

    Errors: :class:`unidle.errors.BadInput` with file, line, field, value and remedy: the first in
    the order of the file.
    """
    source = source_name(path)
    try:
        with opened_text(path, what="trace") as stream:
            trace = JobTrace(source, tuple(_read(stream, source)))
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadFile(source, f"not text in UTF-8: byte 0x{byte:02x}", remedy="save it as UTF-8") from None
    if renames is not None:
        trace = _renamed(trace, renames)
    return trace


def _renamed(trace: JobTrace, names: Renames) -> JobTrace:
    names.check((job.queue for job in trace.jobs), (model for job in trace.jobs for model in job.models))
    jobs = (
        replace(job, queue=names.queue(job.queue), models=names.of_models(job.models)) for job in trace.jobs
    )
    return JobTrace(trace.source, tuple(jobs))


def _read(stream: TextIO, source: str) -> Iterator[TraceJob]:
    rows = csv.reader(stream, strict=True)
    first: dict[str, int] = {}
    try:
        columns = _columns(next(rows, None), source)
        for row in rows:
            if not row:
                continue
            line = _Line(source, rows.line_num, columns, row)
            job = line.job()
            if job.job in first:
                raise line.error(
                    "job", f"the name is used twice, first on line {first[job.job]}", job.job, "each needs its own"
                )  # fmt: skip
            if len(first) == JOBS_LIMIT:
                raise BadFile(f"{source}:{line.number}", f"more than {JOBS_LIMIT:,} jobs", remedy="split it")
            first[job.job] = line.number
            yield job
    except csv.Error as error:
        raise BadFile(
            f"{source}:{rows.line_num}", f"not CSV: {error}", remedy="check that it is the right file"
        ) from None
    if not first:
        raise BadFile(source, "the trace has no job", remedy="give a line for each job below the header")


def _columns(header: list[str] | None, source: str) -> dict[str, int]:
    if not header:
        raise BadFile(source, "the trace is empty", remedy=f"the first line is {','.join(COLUMNS)}")
    names = [name.strip() for name in header]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        noun = "column is" if len(missing) == 1 else "columns are"
        raise BadFile(
            f"{source}:1", f"the {noun} missing", field=", ".join(missing), value=",".join(names)[:100],
            remedy=f"the header is {','.join(COLUMNS)}",
        )  # fmt: skip
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadFile(f"{source}:1", "the column is there twice", field=twice, remedy="keep one of the two")
    known = (*COLUMNS, *OPTIONAL)
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        close = difflib.get_close_matches(unknown, OPTIONAL, 1)
        remedy = (
            f"did you mean {close[0]}?"
            if close
            else f"leave it out; in addition to the usual ones there may be {', '.join(OPTIONAL)}"
        )
        raise BadFile(f"{source}:1", "no such column", field=printable(unknown) or "(empty)", remedy=remedy)
    return {name: k for k, name in enumerate(names)} | {"": len(names)}


class _Line:
    """One line's cells, and errors that point at them."""

    __slots__ = ("_columns", "_row", "_source", "number")

    def __init__(self, source: str, number: int, columns: dict[str, int], row: list[str]) -> None:
        self._source, self.number, self._columns, self._row = source, number, columns, row
        if len(row) != columns[""]:
            raise BadFile(
                f"{source}:{number}", f"{counted(len(row), 'cell')} where the header has {columns['']}", value=",".join(row)[:100],
                remedy="give a cell for each column; quote a cell that holds a comma",
            )  # fmt: skip

    def error(self, field: str, problem: str, value: object, remedy: str) -> BadFile:
        return BadFile(f"{self._source}:{self.number}", problem, field=field, value=value, remedy=remedy)

    def cell(self, field: str) -> str:
        at = self._columns.get(field)
        return "" if at is None else self._row[at].strip()

    def job(self) -> TraceJob:
        gpus = self._gpus()
        ranks = self._whole("ranks", least=1, otherwise=1)
        if gpus % ranks:
            raise self.error(
                "gpus", f"do not divide among {ranks} ranks", gpus,
                "gpus are those of the whole job, the same number for each rank",
            )  # fmt: skip
        return TraceJob(
            line=self.number,
            job=self._name("job"),
            submit_ns=self._time_ns("submit_s"),
            duration_ns=self._time_ns("duration_s", _LONGEST_S),
            gpus=gpus,
            ranks=ranks,
            cpu_milli=self._whole("cpu_milli", otherwise=0),
            memory_bytes=self._whole("memory_mib", otherwise=0) << 20,
            models=tuple(dict.fromkeys(m.strip() for m in self.cell("model").split("|") if m.strip())),
            queue=self._name("queue", "default"),
            priority=self._whole("priority", least=-_MOST, otherwise=0),
            preemptible=self._yes_no("preemptible"),
            estimate_s=self._estimate_s(),
            user=self._name("user", "", may_be_empty=True),
            name=self._name("name", "", may_be_empty=True),
            min_runtime_s=self._seconds("min_runtime_s", _LONGEST_S) if self.cell("min_runtime_s") else 0.0,
        )

    def _gpus(self) -> int:
        try:
            part = 0 < float(self.cell("gpus")) < 1
        except ValueError:
            part = False
        if part:
            raise self.error(
                "gpus", "a part of a GPU", self.cell("gpus"),
                "write 1; `unidle replay openb` packs parts of GPUs",
            )  # fmt: skip
        return self._whole("gpus", least=1)

    def _name(self, field: str, otherwise: str | None = None, *, may_be_empty: bool = False) -> str:
        name = self.cell(field) or otherwise or ""
        if not name and not may_be_empty:
            raise self.error(field, "must not be empty", None, "give each job a name of its own")
        if not name.isprintable() or len(name) > _NAME_LENGTH:
            raise self.error(
                field, f"must be printable, at most {_NAME_LENGTH} characters", name, "shorten it"
            )
        return name

    def _time_ns(self, field: str, most: float = _LATEST_S) -> int:
        return round(self._seconds(field, most) * 1e9)

    def _estimate_s(self) -> float | None:
        if not self.cell("estimate_s"):
            return None
        seconds = self._seconds("estimate_s", _LONGEST_S)
        if not seconds:
            raise self.error("estimate_s", "must be above 0", self.cell("estimate_s"), "leave the cell empty where it is not known")  # fmt: skip
        return seconds

    def _seconds(self, field: str, most: float) -> float:
        seconds = self._number(field, float, "seconds, such as 90 or 12.5")
        if not math.isfinite(seconds):
            raise self.error(field, "must be a finite number", self.cell(field), "give seconds, or leave the line out")  # fmt: skip
        if not 0 <= seconds <= most:
            raise self.error(
                field, f"must be from 0 to {most:.0f} seconds", self.cell(field), "give seconds, or leave the line out"
            )  # fmt: skip
        return seconds

    def _whole(self, field: str, *, least: int = 0, otherwise: int | None = None) -> int:
        if otherwise is not None and not self.cell(field):
            return otherwise
        number = self._number(field, _whole, "a whole number")
        if not least <= number <= _MOST:
            raise self.error(
                field, f"must be a whole number from {least} to {_MOST}", self.cell(field), "correct it, or leave the line out"
            )  # fmt: skip
        return number

    def _number(self, field: str, read: Callable[[str], _T], form: str) -> _T:
        try:
            return read(self.cell(field))
        except ValueError:
            raise self.error(field, "is not a number", self.cell(field), f"give {form}") from None

    def _yes_no(self, field: str) -> bool:
        word = self.cell(field).casefold()
        if word and word not in _YES_NO:
            raise self.error(field, "is not true or false", self.cell(field), "write true or false")
        return _YES_NO.get(word, False)


def _whole(text: str) -> int:
    """``8`` and ``8.0``; NaN and 0.5 are ValueErrors."""
    number = float(text)
    if number != number or not (math.isinf(number) or number.is_integer()):
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdecimal() else int(max(min(number, 2.0 * _MOST), -2.0 * _MOST))
