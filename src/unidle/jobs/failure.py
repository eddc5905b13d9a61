"""Why an attempt of a job failed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

FailureKind = Literal["code", "data", "memory", "machine", "network", "unknown"]
"""The user's code, its data, memory, the machine (node, device, storage), the network, or unknown."""

FAILURE_KINDS: Final[tuple[FailureKind, ...]] = get_args(FailureKind)


@dataclass(frozen=True, slots=True)
class Failure:
    """The first failure of one attempt.

    ``rank`` failed first (None: no single one did) with ``what`` in ``where`` (``crash.py:5``; empty where that
    is unknown). ``code``: its exit code, or minus a signal, whose name is ``signal``; ``meaning`` explains them.
    ``lines``: the last ten of its output. ``because_of``: ranks that failed because of it; ``same``: ranks with
    the same error of their own; ``unsure``: ranks of other hosts that may have failed first, as the clocks of the hosts
    are known no better. ``help``: what the user can change, ``next``: the arguments of the next command.
    ``text`` is all of it in one line, such as ``rank 1: ValueError: shapes (3,4) and (5,) not aligned
    (crash.py:5)``.
    """

    attempt: int
    rank: int | None
    kind: FailureKind
    what: str
    text: str
    where: str = ""
    code: int | None = None
    signal: str | None = None
    meaning: str = ""
    lines: tuple[str, ...] = ()
    because_of: tuple[int, ...] = ()
    same: tuple[int, ...] = ()
    unsure: tuple[int, ...] = ()
    help: str = ""
    next: tuple[str, ...] = ()

    def as_json(self, store: str | None = None) -> dict[str, Any]:
        """As plain values; ``store``: address of the store for the next command."""
        return {**asdict(self), "next": self.command(store)}

    def command(self, store: str | None = None) -> str:
        """The next command as it is typed; may be empty."""
        import shlex

        of_store = store and self.next[:1] == ("unidle",) and self.next != ("unidle", "check")
        return shlex.join([*self.next, "--store", store] if of_store and store else self.next)
