"""The vocabulary of the log: events, and the marks that ranks leave."""

from __future__ import annotations

import msgspec


class Base(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all events: immutable, compact in the log."""
