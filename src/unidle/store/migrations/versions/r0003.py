"""Profiles: what was found in running jobs, next to the log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "unidle_profiles",
        sa.Column("job", sa.Text(), nullable=False),
        whole("start_ns"),
        whole("attempt"),
        whole("rank"),
        whole("end_ns"),
        whole("looks"),
        whole("n_bytes"),
        whole("crc"),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "start_ns", "attempt", "rank"),
    )


def whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)
