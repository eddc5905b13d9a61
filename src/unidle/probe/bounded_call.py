"""Calls that may never return: the caller waits for a limited time, then continues without the result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedCall(Generic[T]):
    """Makes one call at a time in a thread of its own. A thread that hangs in a driver cannot be ended: it is left behind,
    and no second one is sent after it."""

    def __init__(self, name: str, patience_s: float) -> None:
        self._name, self._patience_s = name, patience_s
        self._out: _Call[T] | None = None

    @property
    def hangs(self) -> bool:
        """Whether a call has not come back yet."""
        return self._out is not None

    def ask(self, call: Callable[[], T]) -> tuple[T] | None:
        """What ``call`` returns, or, where an earlier call comes back only now, that one did; None while it hangs.

        Errors: those of the call.
        """
        patience_s = 0.0
        if self._out is None:
            self._out, patience_s = _Call(call, self._name), self._patience_s
        if not self._out.done.wait(patience_s):
            return None
        out, self._out = self._out, None
        if out.error is not None:
            raise out.error
        return (out.results[0],)


class _Call(Generic[T]):
    def __init__(self, call: Callable[[], T], name: str) -> None:
        self.done = threading.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None
        self._call = call
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self.results.append(self._call())
        except BaseException as error:  # raised again for who asks
            self.error = error
        finally:
            self.done.set()
