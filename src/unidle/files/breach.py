"""Finds the first error in a document, in terms of the file.

msgspec converts and has the rules; its errors name a type, not a remedy, and leave out the key inside a mapping.
So when it refuses, the document is walked in its own order along the same rules to the first value that breaks
one. ``Meta(extra={"says": ..., "remedy": ...})`` gives a rule words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import inspect

from unidle.files.document import Breach, Path
from unidle.words import are, counted, listed, plural


@dataclass(frozen=True, slots=True)
class _Words:
    """The text that the type declares."""

    says: str | None = None
    remedy: str | None = None


def first_breach(data: object, kind: object) -> Breach | None:
    """The first value in ``data``, in its own order, that violates a rule of ``kind``."""
    return _walk(data, inspect.type_info(kind), (), _Words())


def closest(word: str, known: Iterable[str]) -> str:
    """The valid word that is most similar to ``word``."""
    return difflib.get_close_matches(word.casefold(), list(known), n=1, cutoff=0.0)[0]


def _walk(data: object, rule: inspect.Type, path: Path, words: _Words) -> Breach | None:
    if isinstance(rule, inspect.Metadata):
        extra = rule.extra or {}
        return _walk(
            data, rule.type, path, _Words(extra.get("says"), extra.get("remedy")) if extra else words
        )
    check = _CHECKS.get(type(rule), _plain)
    return check(data, rule, path, words)


def _struct(data: object, rule: inspect.StructType, path: Path, words: _Words) -> Breach | None:
    if not isinstance(data, Mapping):
        return _wrong("a mapping of fields", data, path, words)
    fields = {f.encode_name: f for f in rule.fields}
    for key, value in data.items():
        if key not in fields:
            return _unknown_field(str(key), rule, (*path, str(key)))
        if (breach := _walk(value, fields[key].type, (*path, key), _Words())) is not None:
            return breach
    for name, field in fields.items():
        if field.required and name not in data:
            example = _example(field.type)
            remedy = f"add it, for instance {name}: {example}" if example else "add it"
            return Breach((*path, name), "the field is missing", None, remedy)
    return None


def _unknown_field(key: str, rule: inspect.StructType, path: Path) -> Breach:
    names = {f.encode_name: [f.encode_name] for f in rule.fields}
    for field in rule.fields:
        inner = _inner_struct(field.type)
        for f in inner.fields if inner else ():
            if f.encode_name not in {own.encode_name for own in rule.fields}:
                names.setdefault(f.encode_name, []).append(f"{field.encode_name}.{f.encode_name}")
    near = names[closest(key, names)]
    found = f"{plural(len(near), 'field')} {are(len(near))} {listed(near)}"
    return Breach(path, "unknown field", None, f"the closest known {found}")


def _inner_struct(rule: inspect.Type) -> inspect.StructType | None:
    if isinstance(rule, inspect.Metadata):
        return _inner_struct(rule.type)
    if isinstance(rule, inspect.UnionType):
        return next((s for s in map(_inner_struct, rule.types) if s is not None), None)
    return rule if isinstance(rule, inspect.StructType) else None


def _example(rule: inspect.Type) -> str | None:
    if isinstance(rule, inspect.Metadata):
        examples = (rule.extra_json_schema or {}).get("examples")
        return msgspec.json.encode(examples[0]).decode() if examples else None
    return None


def _list(
    data: object, rule: inspect.ListType | inspect.VarTupleType, path: Path, words: _Words
) -> Breach | None:
    if not isinstance(data, list | tuple):
        return _wrong("a list", data, path, words)
    low, high = rule.min_length or 0, rule.max_length
    if len(data) < low:
        return Breach(path, f"must have at least {counted(low, 'item')}", None, words.remedy)
    if high is not None and len(data) > high:
        return Breach(path, f"must have at most {high:,} items, not {len(data):,}", None, words.remedy)
    for index, item in enumerate(data):
        if (breach := _walk(item, rule.item_type, (*path, index), _Words())) is not None:
            return breach
    return None


def _dict(data: object, rule: inspect.DictType, path: Path, words: _Words) -> Breach | None:
    if not isinstance(data, Mapping):
        return _wrong("a mapping of names to values", data, path, words)
    for key, value in data.items():
        if (breach := _walk(key, rule.key_type, (*path, str(key)), _Words())) is not None:
            return Breach(breach.path, f"the name {breach.problem}", None, breach.remedy)
        if (breach := _walk(value, rule.value_type, (*path, str(key)), _Words())) is not None:
            return breach
    if rule.max_length is not None and len(data) > rule.max_length:
        return Breach(
            path, f"must have at most {rule.max_length:,} names, not {len(data):,}", None, words.remedy
        )
    return None


def _union(data: object, rule: inspect.UnionType, path: Path, words: _Words) -> Breach | None:
    members = [t for t in rule.types if not isinstance(t, inspect.NoneType)]
    if data is None and len(members) < len(rule.types):
        return None
    breaches = [_walk(data, member, path, words) for member in members]
    if None in breaches:
        return None
    if len(members) == 1:
        return breaches[0]
    # The member whose inside is at fault is the one that the user meant.
    deeper = [b for b in breaches if b is not None and len(b.path) > len(path)]
    if deeper:
        return deeper[0]
    says = words.says or " or ".join(_FRAME.sub("", b.problem) for b in breaches if b)
    return _wrong(says, data, path, words)


_FRAME = re.compile("^must be |, not (?:a mapping|a list|empty)$")
"""What :func:`_wrong` puts around the form that is required."""


def _plain(data: object, rule: inspect.Type, path: Path, words: _Words) -> Breach | None:
    says, fits = _RULES[type(rule)](rule)
    return None if fits(data) else _wrong(says, data, path, words)


def _wrong(says: str, data: object, path: Path, words: _Words) -> Breach:
    problem = f"must be {words.says or says}"
    shown: object = None
    if isinstance(data, Mapping):
        problem += ", not a mapping"
    elif isinstance(data, list | tuple):
        problem += ", not a list"
    elif data is None:
        problem += ", not empty"
    else:
        shown = data
    return Breach(path, problem, shown, words.remedy)


_Fits = Callable[[object], bool]


def _int_rule(rule: inspect.IntType) -> tuple[str, _Fits]:
    def fits(data: object) -> bool:
        return isinstance(data, int) and not isinstance(data, bool) and _within(data, rule)

    return f"a whole number{_span(rule)}", fits


def _float_rule(rule: inspect.FloatType) -> tuple[str, _Fits]:
    def fits(data: object) -> bool:
        return isinstance(data, int | float) and not isinstance(data, bool) and _within(data, rule)

    return f"a number{_span(rule)}", fits


def _bool_rule(_rule: inspect.BoolType) -> tuple[str, _Fits]:
    return "true or false", lambda data: isinstance(data, bool)


def _str_rule(rule: inspect.StrType) -> tuple[str, _Fits]:
    low, high = rule.min_length or 0, rule.max_length
    says = "text"
    if low or high is not None:
        says += f" of {low:,} to {high:,} characters" if high is not None else " that is not empty"

    def fits(data: object) -> bool:
        return (
            isinstance(data, str)
            and low <= len(data)
            and (high is None or len(data) <= high)
            and (rule.pattern is None or re.search(rule.pattern, data) is not None)
        )

    return says, fits


def _literal_rule(rule: inspect.LiteralType) -> tuple[str, _Fits]:
    return "one of " + ", ".join(map(str, rule.values)), lambda data: data in rule.values


def _within(data: float, rule: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (rule.ge is None or data >= rule.ge)
        and (rule.gt is None or data > rule.gt)
        and (rule.le is None or data <= rule.le)
        and (rule.lt is None or data < rule.lt)
    )


def _span(rule: inspect.IntType | inspect.FloatType) -> str:
    if rule.lt is not None:
        low = "" if rule.gt is None else f" over {rule.gt:,g} and"
        return f"{low} under {rule.lt:,g}"
    if rule.le is None:
        return ""
    low = f" over {rule.gt:,g}, at most" if rule.gt is not None else f" from {rule.ge:,} to"
    return f"{low} {rule.le:,}"


def _any_rule(_rule: inspect.AnyType) -> tuple[str, _Fits]:
    return "anything", lambda _: True


_RULES: dict[type, Callable[..., tuple[str, _Fits]]] = {
    inspect.AnyType: _any_rule,
    inspect.IntType: _int_rule,
    inspect.FloatType: _float_rule,
    inspect.StrType: _str_rule,
    inspect.BoolType: _bool_rule,
    inspect.LiteralType: _literal_rule,
}
_CHECKS: dict[type, Callable[..., Breach | None]] = {
    inspect.StructType: _struct,
    inspect.ListType: _list,
    inspect.VarTupleType: _list,
    inspect.DictType: _dict,
    inspect.UnionType: _union,
}
