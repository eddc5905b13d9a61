"""The database interface of the store, implemented in ``sqlite.py`` and ``postgres.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from unidle.errors import StoreError

Params: TypeAlias = Sequence[int | str | bytes | None]
RowTuple: TypeAlias = tuple[Any, ...]


class Database(Protocol):
    """One connection. Every error is raised as a :class:`unidle.errors.StoreError`.

    Statements are those of ``statements.py``; outside :meth:`transaction` each is its own.
    """

    url: str  # without password

    @property
    def types(self) -> Mapping[str, str]:
        """Column types, for :func:`unidle.store.schema.create_statements`."""

    @property
    def signs_requests(self) -> bool:
        """Whether the database itself records the sender of a request."""

    def user(self) -> str:
        """The user of this connection, as far as the database can identify it."""

    def owned_by(self, user: str) -> bool:
        """Whether the store belongs to this user, or to a role or group of which it is a member."""

    def query(self, sql: str, params: Params = ()) -> list[RowTuple]:
        """All rows of a SELECT."""

    def execute(self, sql: str, params: Params = ()) -> int:
        """Carry out a change and return how many rows it touched."""

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None: ...

    def insert(self, sql: str, params: Params) -> int:
        """Add one row to a table with a serial ``id`` and return that."""

    def transaction(self) -> AbstractContextManager[None]:
        """A writing transaction, durable when the block ends and undone when it raises. A nested
        one is part of the outer."""

    def tables(self) -> set[str]:
        """Names of all accessible tables."""

    def verify(self) -> None:
        """:class:`unidle.errors.StoreGone` if the address does not lead to the open store any more."""

    def reconnect(self) -> None:
        """Connect again after :class:`unidle.errors.ConnectionLost`, which is also raised if that fails."""

    def another(self) -> Database:
        """One more connection to the same store, for another thread. Any thread may call it."""

    def problems(self) -> list[str]:
        """What the database's own integrity check finds wrong."""

    def vacuum(self) -> None:
        """Give unused space back to the file system."""

    def size_bytes(self) -> int: ...

    def lock_tables(self) -> None:
        """Inside a transaction: prevent others from creating or upgrading tables until it ends."""

    def close(self) -> None: ...


def no_store(where: str) -> StoreError:
    return StoreError(
        "there is no store", field=where, remedy="check the address; `unidle run` creates a new store"
    )


def foreign(where: str) -> StoreError:
    return StoreError(
        "is not a store of unidle, or its first page is damaged",
        field=where,
        remedy="name another file for the store",
    )
