"""Upgrading a store of an older version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from unidle.errors import StoreError, StoreHeld
from unidle.store import statements as sql
from unidle.store.database import Database
from unidle.store.schema import FIRST_REVISION, REVISION
from unidle.store.sql import SqlStore


class Revision(NamedTuple):
    """Statements that bring a store of the revision before to ``id``, with the dialect's types as in ``schema.TABLES``.

    A released revision never changes. The last one leads to the same tables as ``schema.TABLES``.
    """

    id: str
    statements: tuple[str, ...]
    if_signed: tuple[str, ...] = ()
    """After these, where the database itself records the sender of a request."""


REVISIONS: Final = (
    Revision(
        "0002",
        (
            """CREATE TABLE unidle_bookmarks (
                name VARCHAR(64) NOT NULL PRIMARY KEY,
                seq {int} NOT NULL,
                crc {int} NOT NULL,
                body {blob} NOT NULL)""",
        ),
    ),
    Revision(
        "0003",
        (
            """CREATE TABLE unidle_profiles (
                job TEXT NOT NULL,
                start_ns {int} NOT NULL,
                attempt {int} NOT NULL,
                rank {int} NOT NULL,
                end_ns {int} NOT NULL,
                looks {int} NOT NULL,
                n_bytes {int} NOT NULL,
                crc {int} NOT NULL,
                body {blob} NOT NULL,
                PRIMARY KEY (job, start_ns, attempt, rank))""",
        ),
    ),
    Revision(
        "0004",
        ("ALTER TABLE unidle_requests ADD COLUMN sender TEXT DEFAULT '' NOT NULL",),
        # not before: the senders of the requests that are there are unknown
        ("ALTER TABLE unidle_requests ALTER COLUMN sender SET DEFAULT {user}",),
    ),
    Revision(
        "0005",
        (
            """CREATE TABLE unidle_archives (
                job TEXT NOT NULL,
                part {int} NOT NULL,
                is_last {int} NOT NULL,
                n_bytes {int} NOT NULL,
                crc {int} NOT NULL,
                body {blob} NOT NULL,
                PRIMARY KEY (job, part))""",
        ),
    ),
    Revision(
        "0006",
        (
            """CREATE TABLE unidle_view_rows (
                fold_version {int} NOT NULL,
                part VARCHAR(32) NOT NULL,
                key TEXT NOT NULL,
                position {int} NOT NULL,
                seq {int} NOT NULL,
                crc {int} NOT NULL,
                body {blob} NOT NULL,
                PRIMARY KEY (fold_version, part, key))""",
            "CREATE INDEX unidle_view_rows_position ON unidle_view_rows (fold_version, part, position)",
        ),
    ),
)


def upgrade(database: Database, revision: str, *, read_only: bool) -> None:
    """Bring the tables from ``revision`` to :data:`REVISION`, all or nothing."""
    if revision not in (FIRST_REVISION, *(step.id for step in REVISIONS)):
        raise StoreError(
            "the store is of a newer version than this unidle",
            field=database.url,
            value=revision,
            remedy=f"upgrade unidle (this one supports {REVISION})",
        )
    if read_only:
        raise StoreError(
            "the store is of an older version, and was opened for reading only",
            field=database.url,
            value=revision,
            remedy="upgrade it by opening it for writing once: `unidle store compact`",
        )
    held_by = SqlStore(database).holder()
    if held_by:
        raise StoreHeld(
            f"must be upgraded first, and is held by {held_by}",
            field=database.url,
            remedy="wait until it ends, or stop it",
        )
    run(database, REVISIONS)


def run(database: Database, revisions: Iterable[Revision]) -> None:
    """Carry out every revision that the database lacks, in one transaction."""
    with database.transaction():
        database.lock_tables()
        have = database.query(sql.REVISION_IS)[0][0]  # another process may have been faster
        for step in revisions:
            if step.id > have:
                for statement in (*step.statements, *(step.if_signed if database.signs_requests else ())):
                    database.execute(statement.format(**database.types))
                database.execute(sql.SET_REVISION, (step.id,))
