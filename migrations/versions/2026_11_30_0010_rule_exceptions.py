"""Dates on which a schedule rule does not start.

Why: a rule for working days also started on holidays.
Existing rows: have no exceptions.
Cost at a million rows: none; SQLite rewrites no row for a column with a constant default.
A downgrade loses: the dates.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_rule_exceptions"
down_revision = "0009_marks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "schedule_rules", sa.Column("exceptions_json", sa.Text(), server_default=sa.text("'[]'"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("schedule_rules", "exceptions_json")
