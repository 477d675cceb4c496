"""What operators have said of a thing until further notice.

Why: a drained accelerator was in use again after a restart, and what was acknowledged had to be again.
Existing rows: none.
Cost at a million rows: none.
A downgrade loses: which accelerators are drained and which faults were acknowledged.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_marks"
down_revision = "0008_measured_precision"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "marks",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "subject", name=op.f("pk_marks")),
    )


def downgrade() -> None:
    op.drop_table("marks")
