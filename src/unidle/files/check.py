"""Checks a document against a msgspec type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

from unidle.files.document import Breach, Document, Path

T = TypeVar("T")
Advise = Callable[[Breach], str | None]


def convert(document: Document, kind: type[T], *, what: str, advise: Advise = lambda _: None) -> T:
    """``document`` as a ``kind``; ``advise`` may give a better remedy for a breach.

    Errors: :class:`unidle.files.document.BadFile`, the first in document order.
    """
    breach = _unfit_text(document.data, ())
    if breach is None:
        try:
            return msgspec.convert(document.data, kind)
        except msgspec.ValidationError as error:
            # Only now, so that a good file does not pay for it.
            from unidle.files.breach import first_breach

            breach = first_breach(document.data, kind) or Breach((), str(error))
    remedy = advise(breach) or breach.remedy
    mark = document.mark(breach.path)
    if breach.problem == "must be text" and mark and mark.written:
        remedy = f"put it in quotes: '{mark.written}'"
    remedy = remedy or f"`unidle schema {what}` prints the allowed values"
    raise document.error(breach.path, breach.problem, value=breach.value, remedy=remedy)


def with_same_fields(kind: type[T], part: msgspec.Struct, **others: Any) -> T:
    """The dataclass ``kind`` with ``others`` and, for the rest, the values of the part's fields of the same name."""
    return kind(**same_fields(kind, part) | others)


def same_fields(kind: type[Any], part: msgspec.Struct) -> dict[str, Any]:
    """The fields of the part that the dataclass ``kind`` has by the same name."""
    names = {field.name for field in fields(kind)}
    return {name: getattr(part, name) for name in part.__struct_fields__ if name in names}


def _unfit_text(data: object, path: Path) -> Breach | None:
    """No field can carry NUL (a path or an argument would end there) or half a UTF-16 character."""
    if isinstance(data, str):
        if "\0" in data:
            return Breach(path, "must not hold a NUL character", data, "remove it")
        if not data.isascii() and re.search("[\ud800-\udfff]", data):
            return Breach(path, "must be text in UTF-8", data, "rename the file or variable")
        return None
    members: Iterable[tuple[str | int, object]] = ()
    if isinstance(data, Mapping):
        members = [(str(key), value) for key, value in data.items()]
        for key, _ in members:
            if (breach := _unfit_text(key, path)) is not None:
                return breach
    elif isinstance(data, list | tuple):
        members = list(enumerate(data))
    for key, value in members:
        if (breach := _unfit_text(value, (*path, key))) is not None:
            return breach
    return None
