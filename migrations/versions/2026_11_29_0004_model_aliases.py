"""Other names that a model answers to.

Why: applications ask for a stable name while the model behind it changes.
Existing rows: none.
Cost at a million rows: none.
A downgrade loses: the aliases.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_model_aliases"
down_revision = "0003_key_rotation"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_aliases",
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("alias", name=op.f("pk_model_aliases")),
    )
    op.create_index(op.f("ix_model_aliases_model"), "model_aliases", ["model"])


def downgrade() -> None:
    op.drop_table("model_aliases")
