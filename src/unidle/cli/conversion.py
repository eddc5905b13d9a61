"""Values of options that need no conversion. typer's own imports Pydantic (60 ms), even for an option that is not given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class QuickConversion:
    """A command of typer that converts with Pydantic only what does not have its type yet."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, that of ``--help`` too."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            convert = getattr(parameter, "get_runtime_param", None)  # only versions with Pydantic have it
            if convert is not None and not isinstance(convert, _Conversion):
                parameter.get_runtime_param = _Conversion(convert)
        return found


class _Conversion:
    """A parameter's conversion: what typer calls first, and what that returns."""

    def __init__(self, convert: Callable[[], Any]) -> None:
        self._convert = convert

    def __call__(self) -> _Conversion:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value in its type. Errors: those of typer."""
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is kind:
            return value
        if kind == list[str] and isinstance(value, tuple | list) and all(type(one) is str for one in value):
            return list(value)
        return self._convert().coerce(value, param=param, ctx=ctx)
