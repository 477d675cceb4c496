"""What a worker was measured to hold is kept by the precision of its weights too.

Why: a model rounded at load is off by something else than the same model as stored.
Existing rows: they were all of models as stored, and say so now.
Cost at a million rows: one update; there are five a model and device.
A downgrade loses: what was measured of rounded models.
"""

from __future__ import annotations

from alembic import op

revision = "0008_measured_precision"
down_revision = "0007_tenant_share"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("UPDATE measurements SET subject = subject || '|stored' WHERE kind = 'loaded_memory'")


def downgrade() -> None:
    op.execute("DELETE FROM measurements WHERE kind = 'loaded_memory' AND subject NOT LIKE '%|stored'")
    op.execute("UPDATE measurements SET subject = replace(subject, '|stored', '') WHERE kind = 'loaded_memory'")
    op.execute("DELETE FROM measurements WHERE kind = 'decode_pace'")
