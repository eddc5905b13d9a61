"""The file that ``unidle profile`` writes: checked before the look, and never lost after it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from unidle.cli.common import cannot_write, data_dir, warn
from unidle.cli.output import whole_file
from unidle.errors import BadInput
from unidle.scope.model import Profile

_BINARY: Final = ("pprof", "perfetto", "otlp")
_FLAG: Final = "--out"


@dataclass(frozen=True, slots=True)
class Destination:
    """What is written where: no ``form`` is no file, no ``path`` is standard output."""

    form: str | None
    path: str | None

    @classmethod
    def of(cls, form: str | None, path: str | None) -> Self:
        """From the options. Errors: BadInput where a format cannot be determined, or does not belong on a terminal."""
        if path is not None and not path:
            raise BadInput("is empty", field=_FLAG, value=path, remedy="name a file")
        if form is None and path is not None:
            form = _by_suffix(path)
        if form in _BINARY and path in (None, "-") and sys.stdout.isatty():
            raise BadInput(
                f"{form} is not printed on a terminal", field="--format", value=form, remedy="--out FILE"
            )
        return cls(form, path)

    @property
    def to_stdout(self) -> bool:
        """Whether the file is all that may be printed."""
        return self.form is not None and self.path in (None, "-")

    def check(self, *, as_json: bool = False) -> None:
        """Errors: BadInput where the file could not be made now, or ``--json`` uses the same destination. Leaves
        nothing.
        """
        if as_json and self.to_stdout and self.form != "json":
            raise BadInput(
                "both write to standard output",
                field="--json, --format",
                value=self.form,
                remedy="add --out FILE",
            )
        if self.path in (None, "-"):
            return
        target = Path(os.path.realpath(str(self.path)))
        try:
            if target.exists() and not target.is_file():
                if target.is_dir():
                    raise IsADirectoryError(21, "Is a directory")
                return
            trial = target.with_name(target.name + ".part")
            trial.open("wb").close()
            trial.unlink()
        except OSError as error:
            raise cannot_write(_FLAG, str(self.path), error) from error

    def write(
        self,
        profile: Profile,
        answer: Callable[[], dict[str, Any]],
        page: Mapping[str, Any],
    ) -> str | None:
        """Writes it and prints its path; None for standard output.

        ``page``: what only a page shows (see ``unidle.scope.export.html``).
        Where the place fails only now (a full disk), the profile goes to another one, which the error names.
        """
        content = _content(str(self.form), profile, answer, page)
        try:
            with whole_file(self.path, _FLAG) as stream:
                stream.write(content)
        except BadInput as error:
            if self.path in (None, "-"):
                raise
            saved = _elsewhere(content, Path(str(self.path)).name)
            if saved is None:
                raise
            raise BadInput(
                error.problem, field=_FLAG, value=self.path, remedy=f"it was saved as {saved}"
            ) from error
        return None if self.path in (None, "-") else str(self.path)


def _content(
    form: str,
    profile: Profile,
    answer: Callable[[], dict[str, Any]],
    page: Mapping[str, Any],
) -> bytes:
    """The JSON form is the answer and the profile in one: its content, and the source of it."""
    from unidle.scope.export import FORMATS, html
    from unidle.scope.export.encode import json_bytes

    if form == "html":
        return html.write(profile, budget=answer()["budget"], **page)
    if form != "json":
        return FORMATS[form].write(profile)
    told = answer()
    told["thread_budgets"] = told.pop("threads")
    return json_bytes({**told, **profile.to_json()}) + b"\n"


def _by_suffix(path: str) -> str:
    from unidle.scope.export import FORMATS

    suffixes = sorted(((form.suffix, form.name) for form in FORMATS.values()), key=lambda pair: -len(pair[0]))
    for suffix, name in [
        *suffixes,
        (".json", "json"),
        (".htm", "html"),
        (".txt", "folded"),
        (".pb", "pprof"),
    ]:
        if path.endswith(suffix):
            return name
    raise BadInput(
        "its suffix names no format", field=_FLAG, value=path, remedy=f"say --format {'|'.join(FORMATS)}"
    )


def _elsewhere(content: bytes, name: str) -> Path | None:
    """Saves what could not be written to its destination: in the user's data directory, else among temporary
    files.
    """
    for directory in (data_dir() / "profiles", Path(tempfile.gettempdir())):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor, place = tempfile.mkstemp(prefix="profile-", suffix=f"-{name}", dir=directory)
        except OSError:
            continue
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            return Path(place)
        except OSError as error:
            Path(place).unlink(missing_ok=True)
            warn(f"{directory}: {error.strerror}")
    return None
