"""From rules files to rules, or to one clear error: the shipped one (``rules.yaml``), the user's own, and those given."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Annotated, Final, Literal, TypeVar

from msgspec import Meta, Struct

from unidle.files.check import convert
from unidle.files.document import Bounds, Breach, Document, Path
from unidle.files.load import load_document, source_name
from unidle.files.tree import parse
from unidle.scope.model import State
from unidle.scope.rules import (
    CATEGORIES,
    Category,
    Example,
    FramePattern,
    RuleSet,
    StackRule,
    ThreadKind,
    frame_of,
    pattern_of,
)

T = TypeVar("T")
_Text = Annotated[str, Meta(min_length=1, max_length=2000)]
_Texts = _Text | Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=256)]
_States = State | Annotated[tuple[State, ...], Meta(min_length=1, max_length=3)]
_CONDITIONS: Final = ("state", "thread", "frame", "also", "leaf", "line", "wait")
_REMEDIES: Final = {
    "category": f"one of {', '.join(CATEGORIES)}",
    "state": 'one of "on", "off", "runq" (in quotes: on and off alone are true and false to some readers)',
    "thread": "training or other",
    "waits_for": "threads",
}


class _ExamplePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    stack: Annotated[tuple[_Text, ...], Meta(min_length=1, max_length=1024)]
    state: State = "on"
    thread: ThreadKind = "training"


class _RulePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=80)]
    category: Category
    says: _Text
    do: str = ""
    state: _States = ()
    thread: ThreadKind | None = None
    frame: _Texts = ()
    also: _Texts = ()
    leaf: _Texts = ()
    line: _Texts = ()
    wait: _Texts = ()
    unless: _Texts = ()
    waits_for: Literal["threads"] | None = None
    rest: bool = False
    joins: bool = False
    example: _ExamplePart | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    rules: Annotated[tuple[_RulePart, ...], Meta(min_length=1, max_length=2000)]


@cache
def shipped() -> tuple[StackRule, ...]:
    """The rules that unidle brings."""
    text = resources.files(__package__).joinpath("rules.yaml").read_text("utf-8")
    return rules_of(parse(text, "rules.yaml", "rules", Bounds()), source="unidle")


def load_rules(path: str | os.PathLike[str]) -> tuple[StackRule, ...]:
    """The rules of a user's YAML or JSON file (``-``: standard input).

    Errors: :class:`unidle.errors.BadInput` with line, field, value and remedy.
    """
    return rules_of(load_document(path, what="rules", bounds=Bounds()), source=source_name(path))


def own_rules_file() -> pathlib.Path:
    """Where a user's own rules lie, if there are any."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(pathlib.Path.home() / ".config")
    return pathlib.Path(base) / "unidle" / "profile-rules.yaml"


def all_rules(*given: str | os.PathLike[str]) -> RuleSet:
    """The rules of files given, then the user's own, then the shipped ones. Errors: as of :func:`load_rules`."""
    first = [rule for path in given for rule in load_rules(path)]
    own = own_rules_file()
    if own.is_file():
        first += load_rules(own)
    return RuleSet((*first, *shipped()))


def rules_of(document: Document, source: str) -> tuple[StackRule, ...]:
    """``{rules: [...]}`` as rules. Errors: :class:`unidle.errors.BadInput`."""
    return tuple(replace(rule, source=source) for rule in read_rules(document))


def read_rules(document: Document) -> Iterator[StackRule]:
    """The rules of ``{rules: [...]}``. Errors: :class:`unidle.errors.BadInput` with the line and a remedy."""
    names: set[str] = set()
    for number, part in enumerate(convert(document, _File, what="rules", advise=_advise).rules):
        path: Path = ("rules", number)
        if part.name in names:
            raise document.error((*path, "name"), "is there twice", value=part.name, remedy="give each rule a name of its own")  # fmt: skip
        names.add(part.name)
        yield _rule(document, part, path)


def _rule(document: Document, part: _RulePart, path: Path) -> StackRule:
    def patterns(name: str) -> tuple[FramePattern, ...]:
        told = getattr(part, name)
        texts = (told,) if isinstance(told, str) else told
        return tuple(_read(document, (*path, name), text, pattern_of) for text in texts)

    states: tuple[State, ...] = (part.state,) if isinstance(part.state, str) else part.state
    if document.source != "rules.yaml" and not any(getattr(part, name) for name in _CONDITIONS):
        raise document.error(
            (*path, "name"), "takes everything, so no later rule could ever match", value=part.name,
            remedy='add a condition, such as frame: ["load_batch <user>"]',
        )  # fmt: skip
    example = None
    if part.example is not None:
        at = (*path, "example", "stack")
        stack = tuple(_read(document, at, text, frame_of) for text in part.example.stack)
        example = Example(part.example.state, stack, part.example.thread)
    return StackRule(
        part.name, part.category, part.says, part.do, states, part.thread, patterns("frame"), patterns("also"),
        patterns("leaf"), patterns("line"), tuple(_of_wait(p) for p in patterns("wait")), patterns("unless"),
        part.waits_for, part.rest, part.joins, example,
    )  # fmt: skip


def _of_wait(pattern: FramePattern) -> FramePattern:
    return FramePattern(pattern.function, kind="wait")


def _read(document: Document, path: Path, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise document.error(path, "is no frame", value=text, remedy=str(error)) from None


def _advise(breach: Breach) -> str | None:
    if not breach.path:
        return 'the shortest form is: rules: [{name: mine, category: data, says: reads, frame: ["read_it <user>"]}]'  # words: ok
    name = breach.path[-1]
    if isinstance(name, int):
        name = breach.path[-2] if len(breach.path) > 1 else ""
    return _REMEDIES.get(str(name)) or breach.remedy or "docs/how-to/profile.md has the form"
