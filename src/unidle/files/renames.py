"""Other names for the queues and GPU models of recorded jobs, where a fleet has others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from unidle.errors import BadInput

_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Renames:
    """``queues`` and ``models``: by the name that the jobs have, the one to read instead."""

    queues: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    def queue(self, name: str) -> str:
        return self.queues.get(name, name)

    def of_models(self, names: Iterable[str]) -> tuple[str, ...]:
        """In the same order, each once."""
        return tuple(dict.fromkeys(self.models.get(name, name) for name in names))

    def check(self, queues: Iterable[str], models: Iterable[str]) -> None:
        """:class:`BadInput` for a name that no job has: it is a slip, and would do nothing."""
        asked = (("--queue-map", self.queues, set(queues)), ("--model-map", self.models, set(models)))
        for option, names, known in asked:
            strange = next((name for name in names if name not in known), None)
            if strange is not None:
                has = ", ".join(sorted(known)[:_SHOWN]) or "none"
                raise BadInput("no job names it", field=option, value=strange, remedy=f"jobs name {has}")
