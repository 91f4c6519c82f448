"""Since when a submission is held: the hold of what was never sent ends at its deadline, too."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("submissions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("hold_at", sa.BigInteger(), nullable=True))
    # A fault's hold was set together with the time of the next try, which is a little later.
    table = sa.table("submissions", sa.column("hold"), sa.column("hold_at"), sa.column("due_at"))
    op.execute(sa.update(table).where(table.c.hold.is_not(None)).values(hold_at=table.c.due_at))
