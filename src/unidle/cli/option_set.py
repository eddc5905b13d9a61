"""Options that belong together, or that several commands share: a dataclass with a field for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


def with_options(**sets: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a dataclass, where it has one parameter that takes them all.

    ``sets`` names these parameters. The order of the fields is that of the help.
    """

    def change(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            for name, kind in sets.items():
                given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
            command(**given)

        parameters = list(_parameters(command, sets))
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
        return wrapper

    return change


def _parameters(command: Callable[..., None], sets: dict[str, type]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        kind = sets.get(parameter.name)
        if kind is None:
            yield _by_name(parameter.name, parameter.default, hints[parameter.name])
        else:
            inner = get_type_hints(kind, include_extras=True)
            for one in fields(kind):
                default = inspect.Parameter.empty if one.default is MISSING else one.default
                yield _by_name(one.name, default, inner[one.name])


def _by_name(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
