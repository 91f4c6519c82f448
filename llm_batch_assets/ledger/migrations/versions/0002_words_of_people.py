"""What people decide, what a newer revision takes over, and what was removed at the provider."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Only columns that may be null: the program of the revision before keeps working beside this one.
ADDED: dict[str, dict[str, Any]] = {
    "revisions": {
        "delete_after": sa.BigInteger(),
        "carried": sa.BigInteger(),
        "carried_digest": sa.Text(),
        "superseded_by": sa.Text(),
        "superseded_reason": sa.Text(),
        "word_closure": sa.Text(),
        "word_by": sa.Text(),
        "word_reason": sa.Text(),
    },
    "submissions": {
        "released_at": sa.BigInteger(),
        "abandoned_at": sa.BigInteger(),
        "cancel_sent_at": sa.BigInteger(),
        "remote_deleted_at": sa.BigInteger(),
    },
    "provider_batches": {"deleted_at": sa.BigInteger()},
    "decisions": {"facts": sa.Text()},
}


def upgrade() -> None:
    for table, columns in ADDED.items():
        with op.batch_alter_table(table, schema=None) as batch_op:
            for name, kind in columns.items():
                batch_op.add_column(sa.Column(name, kind, nullable=True))
