"""``unidle progress``: what is read as steps in some output, and the pattern that reads the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from unidle.cli.common import JsonOption, StoreOption, print_json, say, say_whole
from unidle.errors import BadInput, CannotRun, StoreError
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.engine.local.ranks.supervisor.progress.scanner import OutputSummary
    from unidle.view.jobs import JobView

_CHUNK_BYTES = 1 << 20
_STDIN_BYTES = 1 << 26  # so much of it is kept in memory, and the rest in a file


class _Output(NamedTuple):
    """What was printed. ``chunks`` gives it, each time it is called; ``pattern``: the job's own."""

    name: str
    chunks: Callable[[], Iterable[bytes]]
    pattern: str | None = None


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("progress")(progress)


def progress(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|JOB", show_default=False, help="A log file, - for standard input, or a job; default: the newest job.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="RE", show_default=False, help="Progress pattern to try; default: the pattern of the job, otherwise a detected one."),
    ] = None,
    rank: Annotated[int, typer.Option("--rank", metavar="K", min=0, help="Rank of the job to read.")] = 0,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", metavar="N", min=1, show_default=False, help="Attempt of the job to read; default: the last one with output."),
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show which steps are read from a job's output or a log file.

    It also proposes a pattern for the job file that reads the same steps.
    """
    from unidle.engine.local.ranks.supervisor.progress import validate_pattern
    from unidle.engine.local.ranks.supervisor.progress.scanner import read_output

    problem = None if pattern is None else validate_pattern(pattern)
    if problem is not None:
        raise BadInput(
            problem, field="--pattern", value=pattern, remedy=r"for instance --pattern 'step (\d+)'"
        )
    output = _output_of(source, rank, attempt, store)
    used = output.pattern if pattern is None else pattern
    try:
        found = read_output(output.chunks(), used)
        if as_json:
            print_json(_as_json(found))
            return
        _say(output, found, used)
    except BrokenPipeError:
        raise  # of standard output, not of the file
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", field="FILE", value=source, remedy="name another file") from error  # fmt: skip


def _as_json(found: OutputSummary) -> dict[str, int | float | str | None]:
    if not found.marks:
        return {"marks": 0, "first": None, "last": None, "form": None, "confidence": 0.0}
    return {
        "marks": found.marks, "first": found.first, "last": found.last, "form": found.form,
        "confidence": found.confidence,
    }  # fmt: skip


# ---- where the output comes from


def _output_of(source: str | None, rank: int, attempt: int | None, store: str | None) -> _Output:
    if source is None:
        return _of_job(None, rank, attempt, store)
    if source == "-":
        return _of_stdin()
    path = Path(source)
    if path.is_dir():
        raise BadInput("is a directory", field="FILE", value=source, remedy="name a log file in it")
    if path.exists():
        if not path.is_file():
            raise BadInput("is no file", field="FILE", value=source, remedy="pipe it in, and give - as FILE")
        try:
            path.open("rb").close()
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror}", field="FILE", value=source, remedy="name another file") from error  # fmt: skip
        return _Output(source, lambda: _chunks_of(path))
    if "/" in source:
        raise BadInput("no such file", field="FILE", value=source, remedy="name a log file or a job")
    return _of_job(source, rank, attempt, store)


def _chunks_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _chunks(file)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _of_stdin() -> _Output:
    import shutil
    import tempfile

    kept = tempfile.SpooledTemporaryFile(_STDIN_BYTES)  # noqa: SIM115 - read until the process ends
    shutil.copyfileobj(sys.stdin.buffer, kept, _CHUNK_BYTES)

    def chunks() -> Iterator[bytes]:
        kept.seek(0)
        while chunk := kept.read(_CHUNK_BYTES):
            yield chunk

    return _Output("standard input", chunks)


def _of_job(name: str | None, rank: int, attempt: int | None, store: str | None) -> _Output:
    from unidle.api.logs import log_root
    from unidle.cli.common import need_job, read_store, read_view
    from unidle.engine.local import logs

    try:
        opened = read_store(store)
    except StoreError as error:
        raise BadInput("no such file, and no store to find a job in", field="FILE|JOB", value=name, remedy=error.line()) from error  # fmt: skip
    try:
        job = need_job(read_view(opened), name, started=True)
        root, hosts = log_root(opened, job.id)
    except BadInput as error:
        if name is None or error.problem != "no such job in this store":
            raise
        raise BadInput("is neither a file nor a job of this store", field="FILE|JOB", value=name, remedy=error.remedy) from None  # fmt: skip
    number = _attempt_of(job, rank, attempt)

    def chunks(number: int) -> Iterator[bytes]:
        if hosts is not None:
            hosts.renew(number, job.attempts[number - 1], [rank])
            for why in hosts.missing.values():
                raise CannotRun(
                    f"the output of rank {rank} cannot be read now: {why}", field="JOB", value=job.id
                )
        return logs.read(root, job.id, number, rank)

    while attempt is None and number > 1 and next(chunks(number), None) is None:
        number -= 1
    return _Output(
        f"{job.id}, attempt {number}, rank {rank}", lambda: chunks(number), job.spec.progress_pattern
    )


def _attempt_of(job: JobView, rank: int, attempt: int | None) -> int:
    """The attempt that is read first. Errors: BadInput where the job has none, or not this one or this rank of it."""
    if not job.attempts:
        raise BadInput(
            "the job has not started yet",
            field="JOB",
            value=job.id,
            remedy="try again when it runs; `unidle list` shows its state",
        )
    number = len(job.attempts) if attempt is None else attempt
    if number > len(job.attempts):
        raise BadInput(
            "the job has no such attempt", field="--attempt", value=number, remedy=f"1 to {len(job.attempts)}"
        )
    most = len(job.attempts[number - 1].places)
    if rank >= most:
        raise BadInput("the job has no such rank", field="--rank", value=rank, remedy=f"0 to {most - 1}")
    return number


# ---- for people


_SHOWN_LINES = 3
_SHOWN_CHARS = 110


def _same(output: _Output, found: OutputSummary) -> bool:
    """Whether the proposed pattern reads the same lines."""
    from unidle.engine.local.ranks.supervisor.progress.scanner import read_output

    if found.pattern is None:
        return False
    again = read_output(output.chunks(), found.pattern)
    return (again.marks, again.first, again.last) == (found.marks, found.first, found.last)


def _say(output: _Output, found: OutputSummary, pattern: str | None) -> None:
    if not found.marks:
        say(f"{output.name}: no steps" + (f" by the pattern {pattern}" if pattern else " were found"))
        _say_lines(output, None, "The last lines with a number:")
        say("Give a pattern with the step as its group, and try it:")
        say_whole(r"  unidle progress ... --pattern 'batch (?P<step>\d+) of'")
        say("or call unidle.rank.step() in the training loop.")
        return
    say(f"{output.name}: {counted(found.marks, 'line')} read as steps, from {found.first} to {found.last}")
    say(f"  form {found.form}, confidence {found.confidence:g}")
    proposed = found.pattern if pattern is None else pattern
    same = pattern is not None or _same(output, found)
    if proposed is None:
        return
    if same:
        _say_lines(output, proposed, "The last of them:")
    say(
        "In the job file"
        + (":" if pattern else ", a pattern that reads the same:" if same else ", a pattern to start from:")
    )
    say_whole(f"  progress: {{pattern: {_quoted(proposed)}}}")


def _say_lines(output: _Output, pattern: str | None, head: str) -> None:
    """The last lines that ``pattern`` reads as steps; without one those that have a number."""
    from collections import deque

    from unidle.engine.local.ranks.supervisor.progress.custom_pattern import CustomPattern

    own = None if pattern is None else CustomPattern(pattern)
    last: deque[str] = deque(maxlen=_SHOWN_LINES)
    for line in _lines_of(output.chunks()):
        if any(map(str.isdigit, line)) if own is None else own.steps(line.encode()):
            last.append(line)
    if last:
        say(head)
    for line in last:
        shown = " ".join(line.split())
        say_whole("  " + (shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 3] + "..."))


def _lines_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines as a pattern sees them: cut at carriage returns too, without colours, and bounded."""
    from unidle.engine.local.ranks.supervisor.progress.custom_pattern import LINE_CHARS
    from unidle.engine.local.ranks.supervisor.progress.frameworks import ANSI
    from unidle.engine.local.ranks.supervisor.progress.lines import LineCutter

    lines = LineCutter()
    for chunk in chunks:
        for line in lines.feed(chunk).split(b"\n"):
            yield ANSI.sub(b"", line[: 4 * LINE_CHARS]).decode("utf-8", "replace")[:LINE_CHARS]
    yield lines.rest()[:LINE_CHARS].decode("utf-8", "replace")


def _quoted(pattern: str) -> str:
    """``pattern`` as YAML reads it back."""
    if pattern.isprintable():
        return "'" + pattern.replace("'", "''") + "'"
    import json

    return json.dumps(pattern)
