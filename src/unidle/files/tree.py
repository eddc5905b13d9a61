"""YAML text to plain data, by the core schema of YAML 1.2, within bounds.

The parser's events are read one by one, so that no bound is passed before it is noticed. The 1.2
core schema has no ``yes``, ``on`` or ``1:30`` as special values and takes JSON as it is.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

from unidle.files.document import BadFile, Bounds, Document, Path, Position, printable

_CORE: Final = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
}
_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_LARGEST: Final = 1 << 63


def parse(text: str, source: str, what: str, bounds: Bounds) -> Document:
    """The one document in ``text``. Errors: :class:`unidle.files.document.BadFile`."""
    reader = _Reader(text, source, bounds)
    try:
        data = reader.document()
    except yaml.YAMLError as error:
        raise _not_yaml(error, source) from None
    if data is None:
        raise BadFile(source, "the file is empty", remedy=f"unidle schema {what} prints its fields")
    return Document(data, source, reader.marks)


class _Reader:
    """Builds data from the parser's events."""

    def __init__(self, text: str, source: str, bounds: Bounds) -> None:
        # libyaml's parser where PyYAML was built with it: the same events, ten times as fast.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Any = loader(text)
        self._source = source
        self._bounds = bounds
        self._values = 0
        self._deepest = 0
        self._anchors: dict[str, tuple[object, int, int]] = {}
        self.marks: dict[int, dict[str | int, Position]] = {}

    def document(self) -> object:
        self._events.get_event()  # stream start
        if self._events.check_event(yaml.StreamEndEvent):
            return None
        self._events.get_event()  # document start
        data, _ = self._value((), 0)
        self._events.get_event()  # document end
        if not self._events.check_event(yaml.StreamEndEvent):
            line = self._events.peek_event().start_mark.line + 1
            raise BadFile(
                f"{self._source}:{line}", "a second document starts here", remedy="keep one per file"
            )
        return data

    def _value(self, path: Path, depth: int) -> tuple[object, Position]:
        event = self._events.get_event()
        line = event.start_mark.line + 1
        self._count(1, depth, line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), depth, line), Position(line)
        values_before, deepest_before = self._values, self._deepest
        self._deepest = depth
        written = None
        data: object
        if isinstance(event, yaml.ScalarEvent):
            data = self._scalar(event, path, line)
            written = None if isinstance(data, str) else event.value
        else:
            self._check_tag(event, line)
            if isinstance(event, yaml.SequenceStartEvent):
                data = self._sequence(path, depth)
            else:
                data = self._mapping(path, depth)
        if event.anchor is not None:
            below = self._deepest - depth
            self._anchors[event.anchor] = (data, self._values - values_before, below)
        self._deepest = max(self._deepest, deepest_before)
        return data, Position(line, written)

    def _count(self, values: int, deepest: int, line: int) -> None:
        self._values += values
        self._deepest = max(self._deepest, deepest)
        place = f"{self._source}:{line}"
        if deepest > self._bounds.depth:
            raise BadFile(
                place, f"nested too deeply: at most {self._bounds.depth} levels", remedy="flatten it"
            )
        if self._values > self._bounds.values:
            raise BadFile(
                place,
                f"too many values: at most {self._bounds.values:,}, aliases expanded",
                remedy="check that it is the right file",
            )

    def _alias(self, anchor: str, depth: int, line: int) -> object:
        if anchor not in self._anchors:
            raise BadFile(
                f"{self._source}:{line}",
                f"the alias *{anchor} has no anchor before it",
                remedy=f"mark a value above with &{anchor}; a value cannot hold itself",
            )
        data, values, below = self._anchors[anchor]
        self._count(values, depth + below, line)
        return data

    def _sequence(self, path: Path, depth: int) -> list[object]:
        items: list[object] = []
        marks = self.marks[id(items)] = {}
        while not self._events.check_event(yaml.SequenceEndEvent):
            item, marks[len(items)] = self._value((*path, len(items)), depth + 1)
            items.append(item)
        self._events.get_event()
        return items

    def _mapping(self, path: Path, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        marks = self.marks[id(members)] = {}
        while not self._events.check_event(yaml.MappingEndEvent):
            key, key_mark = self._key(path, depth)
            if key in members:
                raise BadFile(
                    f"{self._source}:{key_mark.line}",
                    f"the field is given twice, first on line {marks[key].line}",
                    field=_field((*path, key)),
                    remedy="keep one of the two",
                )
            value, mark = self._value((*path, key), depth + 1)
            members[key] = value
            marks[key] = Position(key_mark.line, mark.written)
        self._events.get_event()
        return members

    def _key(self, path: Path, depth: int) -> tuple[str, Position]:
        key, mark = self._value(path, depth + 1)
        if not isinstance(key, str):
            written = mark.written if mark.written is not None else "a list or mapping"
            raise BadFile(
                f"{self._source}:{mark.line}",
                f"the name of a field must be text, not {written or 'empty'}",
                field=_field(path),
                remedy="put it in quotes" if mark.written else "give it a name",
            )
        return key, mark

    def _scalar(self, event: Any, path: Path, line: int) -> object:
        self._check_tag(event, line)
        if event.tag == _CORE + "str" or (not event.implicit[0] and event.tag is None) or event.tag == "!":
            return event.value
        data = resolve(event.value)
        problem = _out_of_range(data)
        if event.tag is not None and not isinstance(data, _SCALAR_TAGS[event.tag.removeprefix(_CORE)]):
            problem = f"the value is not what its tag !!{event.tag.removeprefix(_CORE)} says"
        if problem:
            raise BadFile(
                f"{self._source}:{line}",
                problem + f" (got {_cut(event.value)})",
                field=_field(path),
                remedy="correct the value, or put it in quotes if it is text",
            )
        return data

    def _check_tag(self, event: Any, line: int) -> None:
        tag = event.tag
        if tag is None or tag == "!":
            return
        kind = tag.removeprefix(_CORE)
        allowed = {"ScalarEvent": {*_SCALAR_TAGS, "str"}, "SequenceStartEvent": {"seq"}}
        if not tag.startswith(_CORE) or kind not in allowed.get(type(event).__name__, {"map"}):
            raise BadFile(
                f"{self._source}:{line}", f"the tag {_cut(tag)} is not allowed here", remedy="remove it"
            )


def resolve(text: str) -> object:
    """A plain scalar's value by the YAML 1.2 core schema; a number may come back infinite."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        # Python refuses to read thousands of digits; such a number is out of range anyway.
        return int(text, 0 if text.startswith(("0o", "0x")) else 10) if len(text) < 100 else _LARGEST
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _out_of_range(data: object) -> str | None:
    if isinstance(data, float) and not math.isfinite(data):
        return "must be a finite number"
    if isinstance(data, int) and not -_LARGEST <= data < _LARGEST:
        return "the number is too large"
    return None


def _not_yaml(error: yaml.YAMLError, source: str) -> BadFile:
    place = source
    problem = str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        if error.problem_mark:
            place = f"{source}:{error.problem_mark.line + 1}"
        problem = ", ".join(part for part in (error.context, error.problem) if part)
    elif isinstance(error, yaml.reader.ReaderError):
        problem = f"{error.reason} at character {error.position}"
    remedy = "correct the syntax; text with any of [ ] { } , : # & * ! % belongs in quotes"
    if "Unicode character escape" in problem:
        remedy = "write the character itself instead of \\u escapes"
    return BadFile(place, f"not valid YAML: {problem}", remedy=remedy)


def _field(path: Path) -> str | None:
    from unidle.files.document import dotted

    return dotted(path) or None


def _cut(text: str, limit: int = 60) -> str:
    return printable(text if len(text) <= limit else text[: limit - 1] + "…")
