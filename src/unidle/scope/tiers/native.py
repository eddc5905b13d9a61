"""Tiers T0 to T2: the native module's sessions as profiles.

The module ``unidle_scope`` (distribution ``unidle-scope``) is optional. Where it is missing or of another version,
:class:`CannotRun` gives the way to install it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, cast

from unidle.errors import BadInput, CannotRun
from unidle.scope import model

if TYPE_CHECKING:
    from types import ModuleType

    import unidle_scope

__all__ = ["NativeWatch", "attach"]

_FORM: Final = 2  # of what Session.take gives
_GET: Final = "install the wheel unidle_scope of this version (docs: Install), or `make setup` in a checkout"
_RIGHTS: Final = (
    "run as root, or give CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE (sudo unidle ...; "
    "in a container: --cap-add of the three, --pid=host)"
)


class NativeWatch:
    """A session of the native module. See :class:`unidle.scope.tiers.ProfilerWatch`."""

    def __init__(self, session: unidle_scope.Session, hz: int) -> None:
        self._session = session
        self._hz = hz

    @property
    def tier(self) -> model.Tier:
        return cast("model.Tier", self._session.tier)

    @property
    def misses(self) -> tuple[str, ...]:
        return tuple(self._session.misses)

    def run(self, seconds: float) -> int:
        return self._session.run(seconds)

    def add(self, pid: int) -> None:
        with _explained():
            self._session.add(pid)

    def take(self) -> model.Profile:
        return profile_of(self._session.take(), self._hz, self.tier, self.misses)

    def costs(self) -> tuple[tuple[str, int, int], ...]:
        """Name, runs and nanoseconds of every BPF program so far: the kernel's own count."""
        return tuple(self._session.program_costs())

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attach(
    pids: Sequence[int],
    *,
    hz: int,
    off_cpu: bool,
    follow: bool,
    operators: bool = False,
    memory: bool = False,
    tier: str | None = None,
) -> NativeWatch:
    """Start a session. Errors: see :func:`unidle.scope.tiers.watch`."""
    module = _module()
    # Steps, collectives and device calls are always counted: they are few, and the governor takes off what is not.
    # Of memory all is tried: where `malloc` is called too often, the governor leaves tensors and pages.
    calls = {"operators": operators, "memory": memory, "malloc": memory, "pages": memory, "follow": follow}
    with _explained():
        session = module.Session(
            list(dict.fromkeys(pids)), hz=hz, off_cpu=off_cpu, follow=follow, tier=tier, calls=calls
        )
    return NativeWatch(session, hz)


def profile_of(told: dict[str, Any], hz: int, tier: model.Tier, misses: Sequence[str] = ()) -> model.Profile:
    """A :class:`Profile` of the columns that ``Session.take`` gives."""
    quality = told["quality"]
    since_start_ns = time.monotonic_ns() - told["start_ns"]
    return model.Profile(
        tier=tier,
        start_ns=told["start_ns"],
        end_ns=told["end_ns"],
        frames=tuple(model.Frame(*row) for row in told["frames"]),
        stacks=tuple(told["stacks"]),
        samples=tuple(model.Sample(*row) for row in told["samples"]),
        threads=tuple(model.Thread(*row) for row in told["threads"]),
        processes=tuple(model.Process(*row) for row in told["processes"]),
        calls=tuple(model.Call(*row) for row in told["calls"]),
        spans=tuple(model.Span(*row) for row in told["spans"]),
        memory=tuple(model.StackMemory(*row) for row in told["memory"]),
        cuts=tuple(model.Truncation(*row) for row in told.get("cuts", ())),
        moments=tuple(model.Moment(*row) for row in told.get("moments", ())),
        quality=model.Quality(**quality | {"notes": tuple(quality["notes"])}),
        misses=tuple(misses),
        hz=hz,
        wall_start_ns=time.time_ns() - since_start_ns,
    )


def _module() -> ModuleType:
    try:
        import unidle_scope
    except ImportError as error:
        raise CannotRun(
            "the profiler's native part is not installed", field="unidle_scope", value=str(error), remedy=_GET
        ) from None
    if (form := getattr(unidle_scope, "FORM", None)) != _FORM:
        raise CannotRun(
            f"the profiler's native part is of another version: it has form {form}, this version form {_FORM}",
            field="unidle_scope",
            value=getattr(unidle_scope, "__version__", None),
            remedy=_GET,
        )
    return unidle_scope


@contextmanager
def _explained() -> Iterator[None]:
    """The module's errors as the program's own. They are one line each, and say which pid or what is missing."""
    try:
        yield
    except ProcessLookupError as error:
        raise BadInput(str(error), field="pid") from None
    except PermissionError as error:
        raise CannotRun(f"is not permitted: {error}", field="profile", remedy=_RIGHTS) from None
    except OSError as error:
        raise CannotRun(f"does not work here: {error}", field="profile", remedy="see unidle doctor") from None
