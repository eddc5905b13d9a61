"""Tokens that this hub did not make: whose they are is found elsewhere, which may take a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from unidle.hub import frames


class NotKnownYet(Exception):
    """Whose a token is was requested: the hello is checked again later."""


class Voucher(Protocol):
    """Finds whose tokens are that an authority outside issued, such as a cluster."""

    def knows(self, hello: frames.Hello) -> bool:
        """Whether the token of a hello may be one of that authority."""
        ...

    def refusal(self, hello: frames.Hello, wake: Callable[[], None]) -> str | None:
        """Why the token of a hello does not speak for what it claims to be; empty where it does.

        None: not known yet. ``wake`` is then called, from any thread, once the same question has an answer. Never waits.
        """
        ...
