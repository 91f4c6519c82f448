"""An index of what waits to be sent: taking the next one reads one row, not the backlog."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    waits = sa.text("state IN ('VALIDATED', 'UPLOADED')")
    op.create_index(
        "submissions_to_send",
        "submissions",
        ["due_at", "id"],
        sqlite_where=waits,
        postgresql_where=waits,
    )
