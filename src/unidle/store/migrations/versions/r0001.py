"""The first tables.

A store is made whole from ``unidle.store.schema``; revisions only bring older ones up to it. The
next one is written next to this file (``r0002.py``, ``down_revision = "0001"``) with the same change
to ``schema.TABLES`` and ``schema.REVISION``; the tests compare both ways.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

# SQLite's row ids are columns of type INTEGER, which has 64 bits there.
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "unidle_writer",
        sa.Column("id", KEY, primary_key=True, autoincrement=False),
        whole("token"),
        sa.Column("holder", sa.Text()),
        whole("expires_ns"),
        whole("last_seq"),
        whole("last_time_ns"),
        whole("crc"),
    )
    op.create_table(
        "unidle_events",
        sa.Column("seq", KEY, primary_key=True, autoincrement=False),
        whole("time_ns"),
        text("source"),
        whole("source_seq"),
        text("kind"),
        blob(),
        whole("crc"),
    )
    op.create_table(
        "unidle_requests",
        serial(),
        whole("time_ns"),
        text("kind"),
        blob(),
        whole("crc"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "unidle_snapshots",
        whole("fold_version"),
        whole("seq"),
        whole("crc"),
        blob(),
        sa.PrimaryKeyConstraint("fold_version", "seq"),
    )
    op.create_table(
        "unidle_segments",
        serial(),
        whole("seq"),
        whole("fold_version"),
        whole("start_ns"),
        whole("end_ns"),
        whole("row_count"),
        whole("body_crc"),
        whole("crc"),
        blob(),
        sqlite_autoincrement=True,
    )


def whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def blob() -> sa.Column[bytes]:
    return sa.Column("body", sa.LargeBinary(), nullable=False)


def serial() -> sa.Column[int]:
    return sa.Column("id", KEY, sa.Identity(always=False), primary_key=True)
