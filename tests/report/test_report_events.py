"""Every kind of event that the log may hold can be shown: by the report, while a job runs, and by explain and show."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal

import msgspec
import pytest

from unidle.cli.live import Live
from unidle.control.queries.describe import explain, job_detail
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.report.collect import event_lines
from unidle.store.protocol import StoredEvent
from view.telling import Telling

HOSTILE = "</script><b>\x1b[31m"


def example(kind: Any, full: bool) -> Any:
    """A value of a type: with every optional field set, or with none."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return example(arguments[0], full)
    if origin is Literal:
        return arguments[-1 if full else 0]
    if origin in (types.UnionType, typing.Union):
        return None if type(None) in arguments and not full else example(arguments[0], full)
    if origin is tuple:
        inner = arguments[:1] if len(arguments) == 2 and arguments[1] is ... else arguments
        return tuple(example(one, full) for one in inner) if full or len(inner) == len(arguments) else ()
    if origin is dict:
        return {example(arguments[0], full): example(arguments[1], full)} if full else {}
    if origin is list:
        return [example(arguments[0], full)] if full else []
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        chosen = [f for f in msgspec.structs.fields(kind) if full or f.required]
        return kind(**{f.name: example(f.type, full) for f in chosen})
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        needed = [f for f in fields(kind) if full or (f.default is MISSING and f.default_factory is MISSING)]
        return kind(**{f.name: example(hints[f.name], full) for f in needed if f.init})  # type: ignore[operator]
    return {str: HOSTILE, int: 1, float: 0.5, bool: full, bytes: b"x", type(None): None}[kind]


def of_kind(kind: type[Any], full: bool) -> Any:
    event = example(kind, full)
    own: dict[str, Any] = {"job": "j", "attempt": 1, "rank": 0}
    if kind is ev.RanksSilent:
        own["ranks"] = (0,)
    elif kind is ev.RankLanded:
        own["slices"] = ("n0/1",)
    return msgspec.structs.replace(
        event, **{name: own[name] for name in own if name in kind.__struct_fields__}
    )


def events() -> Iterator[Any]:
    for name, kind in ev.KINDS.items():
        if kind is ev.RankSaw:
            for mark in (
                "spawn",
                "step",
                "span",
                "begin",
                "ready",
                "saved",
                "restored",
                "exit",
                "lost",
                "note",
                "new",
            ):
                for full in (True, False):
                    marks = (msgspec.structs.replace(example(Mark, full), k=mark),)
                    yield pytest.param(ev.RankSaw("j", 1, 0, 0, marks), id=f"{name}-{mark}-{full}")
        else:
            for full in (True, False):
                yield pytest.param(of_kind(kind, full), id=f"{name}-{'full' if full else 'bare'}")


@pytest.mark.parametrize("event", list(events()))
def test_every_kind_of_event_can_be_shown(event: Any) -> None:
    telling = Telling(2).at(100).submit("j").place("j", "n0/0").at(200)
    kind, body = ev.encode(event)
    lines = list(event_lines(telling.view, StoredEvent(1, 200, "c", 1, kind, body)))
    assert all(isinstance(line.text, str) for line in lines)
    because = getattr(event, "because", "")
    words = because if isinstance(because, str) else because.text
    assert not lines or words in lines[0].text
    Live("plain").tell(telling.view, event)


@pytest.mark.parametrize(
    "event", [of_kind(kind, full) for kind in ev.KINDS.values() if "attempt" in kind.__struct_fields__
              and kind not in (ev.RankSaw, ev.AttemptPlaced, ev.Predicted) for full in (True, False)],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_what_a_job_went_through_can_be_explained_and_shown(event: Any) -> None:
    telling = Telling(2).at(100).submit("j").place("j", "n0/0").at(200)
    telling.tell(event)
    job = telling.view.jobs["j"]
    assert msgspec.json.encode([explain(telling.view, job), job_detail(telling.view, job)])
