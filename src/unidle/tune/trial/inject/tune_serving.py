"""When requests begin and when their tokens are chosen, in a program that serves a model. Marks in the copy of its code call :func:`begin`.

A token is chosen by ``argmax`` or ``multinomial`` outside of modules, without gradients. What is open belongs to a context, so threads and
coroutines have their own. Times are those of the program's clock; an accelerator is waited for when a token is chosen.
"""

from __future__ import annotations

import sys
import threading
import time
from contextvars import ContextVar
from types import CodeType
from typing import Any

MOST_REQUESTS = 10_000
CLOCK = time.perf_counter


class TimedRequest:
    """One request: where it began, and when it had its first and its last token."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.begin = CLOCK()
        self.first = self.last = 0.0
        self.tokens = 0


CURRENT: ContextVar[Any] = ContextVar("tune_request", default=None)
REQUESTS: list[TimedRequest] = []
MAIN: list[Any] = [None]
"""The request that the main thread works on; the sampler reads it."""
DEPTH = threading.local()


def begin() -> None:
    """A request begins in the function that calls this, unless one is open that has no token yet."""
    one = CURRENT.get()
    if one is not None and not one.tokens:
        return
    one = TimedRequest(sys._getframe(1).f_code)  # noqa: SLF001
    CURRENT.set(one)
    if len(REQUESTS) < MOST_REQUESTS:
        REQUESTS.append(one)
    if threading.current_thread() is threading.main_thread():
        MAIN[0] = one


def phase(codes: set[CodeType]) -> str:
    """What the main thread does for its request, if that is on its stack, whose code objects are given: ``prefill`` or ``decode``."""
    one = MAIN[0]
    if one is None or one.code not in codes:
        return ""
    return "decode" if one.tokens else "prefill"


def token() -> None:
    """A token of the open request is known."""
    one = CURRENT.get()
    if one is not None:
        one.last = CLOCK()
        one.first = one.first or one.last
        one.tokens += 1


def rows() -> list[list[Any]]:
    """Of requests with a token: file, line, and seconds at the begin, the first token and the last; and the number of tokens."""
    return [
        [one.code.co_filename, one.code.co_firstlineno, one.begin, one.first, one.last, one.tokens]
        for one in REQUESTS
        if one.tokens
    ]


def install(torch: Any) -> None:
    """Hook the choice of tokens, and the calls of modules."""
    module = sys.modules["torch.nn.modules.module"]
    plain = module.Module.__call__

    def call(self: Any, *given: Any, **more: Any) -> Any:
        DEPTH.value = getattr(DEPTH, "value", 0) + 1
        try:
            return plain(self, *given, **more)
        finally:
            DEPTH.value -= 1

    module.Module.__call__ = call
    for owner in (torch, torch.Tensor):
        for name in ("argmax", "multinomial"):
            setattr(owner, name, chooser(torch, getattr(owner, name)))


def chooser(torch: Any, plain: Any) -> Any:
    """A function whose results are tokens, where no module calls it."""
    cuda = torch.cuda

    def inner(*given: Any, **more: Any) -> Any:
        found = plain(*given, **more)
        if not getattr(DEPTH, "value", 0) and CURRENT.get() is not None and not torch.is_grad_enabled():
            if cuda.is_available() and cuda.is_initialized():
                cuda.synchronize()
            token()
        return found

    return inner
