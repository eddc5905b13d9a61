"""The fields of a job file as keyword arguments. The parser of the job file checks them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unidle.api.function_call import command_of, name_of
from unidle.errors import BadInput
from unidle.jobs import JobSpec

if TYPE_CHECKING:
    from unidle.files.job_file import JobFields

Command = Sequence[str | os.PathLike[str]]


def spec_of(
    target: Command | str | os.PathLike[str] | Callable[..., object], fields: JobFields, source: str
) -> JobSpec:
    """The job that a call describes. ``source`` is the name of the call in errors.

    Errors: :class:`BadInput` as for a job file.
    """
    from unidle.files.job import job_from_mapping

    given = {_key(name): _plain(value) for name, value in fields.items() if value is not None}
    if "command" in given:
        raise BadInput("is the first argument", field="command", remedy=f"{source}([...], ranks=2)")
    here = os.getcwd()  # noqa: PTH109
    if callable(target):
        given = {"command": list(command_of("call")), "name": name_of(target), **given}
    elif isinstance(target, (str, os.PathLike)) and os.fspath(target).endswith((".yaml", ".yml", ".json")):
        return _of_file(os.fspath(target), given, here)
    else:
        given = {"command": _command(target, given.get("workdir", here)), **given}
    return job_from_mapping(given, source, here)


def _key(name: str) -> str:
    """The field of the job file; one of its names is a word of Python."""
    return "class" if name == "job_class" else name


def _of_file(path: str, given: dict[str, object], here: str) -> JobSpec:
    """A job file; what the call gives takes precedence, and its ``workdir`` is relative to the caller's."""
    from unidle.files.job import BOUNDS, job_from_mapping, load_job
    from unidle.files.load import base_dir_of, load_document

    if not given:
        return load_job(path)
    data = load_document(path, what="job", bounds=BOUNDS).data
    if not isinstance(data, dict):
        return load_job(path)  # its error says what it must be
    if isinstance(workdir := given.get("workdir"), str):
        given = {**given, "workdir": os.path.join(here, workdir)}  # noqa: PTH118
    return job_from_mapping({**data, **given}, path, base_dir_of(path))


def _command(target: Command | str | os.PathLike[str], workdir: object) -> object:
    """As the job file's parser takes it. A Python script is run by this Python; it must exist in ``workdir``."""
    words = _plain([target] if isinstance(target, (str, os.PathLike)) else target)
    if isinstance(words, list) and words and isinstance(words[0], str) and words[0].endswith(".py"):
        _check_script(words[0], workdir)
        return [sys.executable or "python3", *words]
    return words if not isinstance(target, str) else target


def _check_script(script: str, workdir: object) -> None:
    """Errors: BadInput if it does not exist. The parser checks ``workdir`` itself."""
    place = Path(str(workdir))
    if "\0" not in f"{place}{script}" and place.is_dir() and not (place / script).is_file():
        where = "" if os.path.isabs(script) else f" in {place.absolute()}"  # noqa: PTH117
        raise BadInput(
            f"there is no such file{where}", field="command", value=script,
            remedy="check the name; ranks start in `workdir`, which is the current directory if not given",
        )  # fmt: skip


def _plain(value: object) -> object:
    """As a YAML parser would give it: paths as text, NumPy's integers as integers."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {_plain(name): _plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if hasattr(value, "__index__") and not isinstance(value, int):
        return int(value)
    return value
