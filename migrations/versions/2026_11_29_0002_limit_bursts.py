"""How much of a rate may be taken at once.

Why: a rate a minute alone lets a tenant take a whole minute's worth in one instant, or nothing else.
Existing rows: keep a burst of one minute's worth, which is what they had.
Cost at a million rows: none; SQLite rewrites no row for a column that may be null.
A downgrade loses: the bursts.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_limit_bursts"
down_revision = "0001_first_schema"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("limits", sa.Column("request_burst", sa.Integer(), nullable=True))
    op.add_column("limits", sa.Column("token_burst", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("limits", "token_burst")
    op.drop_column("limits", "request_burst")
