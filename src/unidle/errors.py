"""The hierarchy of errors. A message has the field, the value and the remedy."""

from __future__ import annotations


class UnidleError(Exception):
    """Base of every error that unidle raises on purpose.

    ``exit_code`` is the exit code of the command line for the error.
    """

    exit_code = 1

    def __init__(
        self,
        problem: str,
        *,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = problem
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(self.line())

    def line(self) -> str:
        """The error as one line: field, problem, value, remedy."""
        text = f"{self.field}: {self.problem}" if self.field else self.problem
        if self.value is not None:
            text += f" (got {_short(self.value)})"
        if self.remedy:
            text += f"; {self.remedy}"
        return text.replace("\n", " ")

    def to_json(self) -> dict[str, object]:
        """The same for machines: ``{"error": {...}}``."""
        value = self.value if isinstance(self.value, (str, int, float, bool, type(None))) else str(self.value)
        told = {"field": self.field, "problem": self.problem, "value": value, "remedy": self.remedy}
        return {"error": {**told, "exit_code": self.exit_code}}


class BadInput(UnidleError):
    """The input of the user is invalid or not allowed."""

    exit_code = 2


class CannotRun(UnidleError):
    """The request is well formed, but this machine or fleet can never carry it out."""

    exit_code = 3


class JobFailed(UnidleError):
    """A job that was waited for failed or was cancelled. ``field`` is its id, ``state`` how it ended."""

    def __init__(
        self,
        problem: str,
        *,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
        state: str = "failed",
    ) -> None:
        self.state = state
        super().__init__(problem, field=field, value=value, remedy=remedy)


class TargetEnded(UnidleError):
    """The process or job ended before the first sample."""

    exit_code = 5


class StoreError(UnidleError):
    """The store cannot be used as requested."""

    exit_code = 4


class HubUnreachable(UnidleError):
    """The hub of a controller cannot be reached from this host, or is another one than was named."""

    exit_code = 4


class StoreHeld(StoreError):
    """Another writer holds the store."""


class LeaseLost(StoreError):
    """This writer's lease was taken over; it may not append any more."""


class StoreGone(StoreError):
    """A file of the store was deleted or replaced while it was open: what is written to it is lost."""


class ConnectionLost(StoreError):
    """The connection to the database is lost; another one may succeed."""


class StoreDamaged(StoreError):
    """The store's content fails its own checks."""


class IllegalTransition(UnidleError):
    """A state transition that is not in the table of the state machine."""


def _short(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
