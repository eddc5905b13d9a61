"""Who sent a request: on PostgreSQL the role of the session, which the server itself writes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("unidle_requests", sa.Column("sender", sa.Text(), nullable=False, server_default=""))
    if op.get_bind().dialect.name == "postgresql":  # not before: who sent what is there already is unknown
        op.alter_column("unidle_requests", "sender", server_default=sa.text("SESSION_USER"))
