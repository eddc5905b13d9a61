"""Views of jobs that have ended, each in a row: a snapshot that holds them all takes longer with every job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "unidle_ended",
        sa.Column("fold_version", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("crc", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("fold_version", "job"),
    )
    op.create_index("unidle_ended_position", "unidle_ended", ["fold_version", "position"])
