"""Which key took a key's place.

Why: a rotated key stays valid for a while beside its successor, and a list has to show which that is.
Existing rows: were never rotated: null.
Cost at a million rows: none; SQLite rewrites no row for a column that may be null.
A downgrade loses: which key replaced which; both keep their expiry.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_key_rotation"
down_revision = "0002_limit_bursts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("replaced_by", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("api_keys", "replaced_by")
