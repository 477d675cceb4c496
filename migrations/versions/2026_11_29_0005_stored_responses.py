"""Answers of /v1/responses that their clients had stored.

Why: a later request may name one as what it goes on from.
Existing rows: none.
Cost at a million rows: none.
A downgrade loses: every stored answer.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_stored_responses"
down_revision = "0004_model_aliases"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_responses",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("previous_id", sa.Text(), nullable=True),
        sa.Column("input_json", sa.Text(), nullable=False),
        sa.Column("response_json", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_stored_responses_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stored_responses")),
    )
    op.create_index(op.f("ix_stored_responses_tenant_id"), "stored_responses", ["tenant_id"])
    op.create_index(op.f("ix_stored_responses_created_at"), "stored_responses", ["created_at"])


def downgrade() -> None:
    op.drop_table("stored_responses")
