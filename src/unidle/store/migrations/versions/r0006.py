"""Rows that a snapshot of the view leaves out: one that holds all jobs takes longer with every job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "unidle_view_rows",
        sa.Column("fold_version", sa.BigInteger(), nullable=False),
        sa.Column("part", sa.String(32), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("crc", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("fold_version", "part", "key"),
    )
    op.create_index("unidle_view_rows_position", "unidle_view_rows", ["fold_version", "part", "position"])
