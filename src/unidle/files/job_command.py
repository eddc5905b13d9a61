"""A job from the command line: its program, and options that take precedence over a job file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from unidle.errors import BadInput
from unidle.files.job import BOUNDS, job_from_command, job_of_document
from unidle.files.load import STDIN, base_dir_of, load_document
from unidle.jobs import JobSpec

_JOB_FILES: Final = (".yaml", ".yml", ".json")
_SHOWN: Final = 60


def is_job_file(word: str) -> bool:
    """Whether the first word after the options names a job file, by its ending; ``-`` is standard input.

    Streams (``/dev/stdin``, ``<(...)`` of a shell) are none by themselves: ``load_document`` refuses them.
    """
    return word == STDIN or word.lower().endswith(_JOB_FILES)


def job_with_options(path: str, options: Mapping[str, Any]) -> tuple[JobSpec, list[str]]:
    """The job of the file ``path`` with ``options`` (fields of a job file) in place of its own, and what they changed.

    Each change is one line such as ``ranks: 2 (job.yaml: 4)``. Members of ``env``, ``limits``, ``restart`` and
    ``checkpoint`` are replaced one by one. Errors: :class:`unidle.errors.BadInput`.
    """
    document = load_document(path, what="job", bounds=BOUNDS)
    if not options:
        return job_of_document(document, base_dir_of(path)), []
    job_from_command(["job"], **options)  # what is wrong with an option is not the file's fault
    changes: list[str] = []
    if isinstance(document.data, dict):
        source = "standard input" if path == STDIN else Path(path).name
        changes = list(_put(document.data, options, "", source))
    return job_of_document(document, base_dir_of(path)), changes


def _put(into: dict[str, Any], options: Mapping[str, Any], above: str, source: str) -> Sequence[str]:
    """Put ``options`` into a mapping of the document, in place: its marks go by identity."""
    changes: list[str] = []
    for field, value in options.items():
        before = into.get(field)
        if isinstance(value, Mapping) and isinstance(before, dict):
            changes += _put(before, value, f"{above}{field}.", source)
        elif isinstance(value, Mapping):
            into[field] = {}
            changes += _put(into[field], value, f"{above}{field}.", source)
        elif before != value:
            into[field] = value
            was = f"{source}: {_shown(before)}" if before is not None else f"not in {source}"
            changes.append(f"{above}{field}: {_shown(value)} ({was})")
    return changes


def _shown(value: object) -> str:
    """A value as a job file would have it, cut where it is long."""
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{name}: {_shown(member)}" for name, member in value.items()) + "}"
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    else:
        text = str(value) if value != "" else "''"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def command_of(words: Sequence[str], workdir: str, path: str | None) -> tuple[str, ...]:
    """The command for a program and its arguments as they were typed: a ``.py`` file is run by Python.

    ``workdir`` is where ranks start, and relative names from. ``path`` is their PATH; None where it is not known (the
    job runs elsewhere), so that programs are not looked for. Errors: :class:`unidle.errors.BadInput`.
    """
    program = words[0]
    place = Path(workdir, program)
    if not Path(workdir).is_dir():
        return tuple(words)  # the parser of jobs refuses the directory, and says why
    if program.lower().endswith(".py"):
        _check_file(program, place)
        return (_python(path), *words)
    if "/" in program:
        _check_file(program, place)
        if not os.access(place, os.X_OK):
            raise _refused(
                program, "is not executable, and not a job file by its ending",
                f"chmod +x {program}, or name what runs it (`unidle run bash {program}`); a job file ends in .yaml, .yml "
                "or .json",
            )  # fmt: skip
    elif path is None:
        if place.is_dir():
            _check_file(program, place)
    elif shutil.which(program, path=path) is None:
        raise _not_on_path(program, place)
    return tuple(words)


def literal_command_of(words: Sequence[str], workdir: str, path: str | None) -> tuple[str, ...]:
    """The command after ``--``: as it was typed, but for a ``.py`` file that only Python can run.

    Such a file is in ``workdir``, and it is neither found on ``path`` (as in :func:`command_of`) nor an executable file
    that was given with its directory.
    """
    program = words[0] if words else ""
    place = Path(workdir, program)
    if not program.lower().endswith(".py") or "\0" in program or not place.is_file():
        return tuple(words)
    known = os.environ.get("PATH", os.defpath) if path is None else path
    direct = os.access(place, os.X_OK) if "/" in program else shutil.which(program, path=known) is not None
    return tuple(words) if direct else (_python(path), *words)


def _check_file(program: str, place: Path) -> None:
    if place.is_file():
        return
    if place.is_dir():
        module = f"; a package runs as `unidle run python -m {place.resolve().name}`"
        raise _refused(program, "is a directory, not a program or a job file", f"name the file in it{module}")
    if place.exists():
        raise _refused(program, "is not a regular file", "a job file on standard input is `-`")
    where = "" if Path(program).is_absolute() else f" in {Path(place).absolute().parent}"
    raise _refused(
        program, f"there is no such file{where}", "check the name; ranks start in the directory of --workdir"
    )


def _not_on_path(program: str, place: Path) -> BadInput:
    if place.is_dir():
        _check_file(program, place)
    if place.is_file():
        return _refused(
            program, "there is no such program on PATH, only a file of this name here", f"write ./{program}"
        )
    return _refused(
        program, "there is no such program on PATH", "check its name; a job file ends in .yaml, .yml or .json"
    )


def _refused(program: str, problem: str, remedy: str) -> BadInput:
    return BadInput(problem, field="PROGRAM", value=program, remedy=remedy)


def _python(path: str | None) -> str:
    """The Python that the ranks' PATH has: that of the active environment, not unidle's own."""
    known = os.environ.get("PATH", os.defpath) if path is None else path
    return next((name for name in ("python", "python3") if shutil.which(name, path=known)), sys.executable)
