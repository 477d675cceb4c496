"""A tenant's share of the engines beside the other tenants of its priority.

Why: tenants of one priority had equal shares, whatever their contracts say.
Existing rows: keep an equal share, which is what null means.
Cost at a million rows: none; SQLite rewrites no row for a column that may be null.
A downgrade loses: the shares.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_tenant_share"
down_revision = "0006_batches"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("limits", sa.Column("share", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("limits", "share")
