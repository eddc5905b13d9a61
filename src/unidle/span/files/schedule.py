"""Schedules by name, and those in a Python file of the user's own: ``./mine.py:name``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unidle.errors import BadInput
from unidle.span.model.setting import Setting
from unidle.span.simulate.schedules import SCHEDULES, Schedule, own


def schedules_named(text: str, field: str = "--schedule") -> list[Schedule]:
    """The schedules in ``NAME[,NAME...]``, each once; ``field`` is what errors are about.

    Errors: :class:`unidle.errors.BadInput`.
    """
    found: dict[str, Schedule] = {}
    for name in (part.strip() for part in text.split(",")):
        if name in found:
            raise BadInput("is there twice", field=field, value=name, remedy="name each once")
        if ".py:" in name:
            found[name] = _own(name, field)
        elif name in SCHEDULES:
            found[name] = SCHEDULES[name]
        else:
            raise BadInput(
                "there is no such schedule", field=field, value=name,
                remedy=f"{', '.join(SCHEDULES)}, or FILE.py:FUNCTION",
            )  # fmt: skip
    return list(found.values())


def _own(name: str, field: str) -> Schedule:
    path, _, function = name.rpartition(":")
    if not Path(path).is_file():
        raise BadInput("there is no such file", field=field, value=path, remedy="check the path")
    spec = importlib.util.spec_from_file_location("unidle_own_schedule", path)
    if spec is None or spec.loader is None:
        raise BadInput("is not a Python file", field=field, value=path, remedy="name a .py file")
    module = importlib.util.module_from_spec(spec)
    _explained(name, field, lambda: spec.loader.exec_module(module) if spec.loader else None)
    make = getattr(module, function, None)
    if not callable(make):
        raise BadInput(
            f"{path} has no such function", field=field, value=function,
            remedy=f"def {function}(setting): return a list of (op, microbatch) for each stage",
        )  # fmt: skip

    def called(setting: Setting) -> Any:
        return _explained(name, field, lambda: [list(steps) for steps in make(setting)])

    return own(name, called)


def _explained(name: str, field: str, act: Callable[[], Any]) -> Any:
    """What the user's code raises is the user's to read, in one line."""
    try:
        return act()
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"raised {type(error).__name__}: {error}",
            field=field,
            value=name,
            remedy="correct the file",
        ) from error
