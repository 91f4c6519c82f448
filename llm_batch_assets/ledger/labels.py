"""Labels do not lie: a version stands for the content that it was first used with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from llm_batch_assets.errors import LabelConflict
from llm_batch_assets.ledger import schema
from llm_batch_assets.ledger.database import insert_first


@dataclass(frozen=True, slots=True)
class Label:
    """A version label and the digest of the content it stands for."""

    kind: str
    version: str
    digest: str


def bind_labels(
    connection: Connection, tenant_id: str, workload: str, labels: Iterable[Label], now: int
) -> None:
    """Bind version labels to their content at first use.

    Raises:
        LabelConflict: a known label stands for other content; both digests are named.
    """
    table = schema.labels
    for label in labels:
        row = {
            "tenant_id": tenant_id,
            "workload": workload,
            "kind": label.kind,
            "version": label.version,
            "digest": label.digest,
            "bound_at": now,
        }
        if not insert_first(connection, table, row):
            check_labels(connection, tenant_id, workload, [label])


def check_labels(
    connection: Connection, tenant_id: str, workload: str, labels: Iterable[Label]
) -> None:
    """Refuse labels that stand for other content already; binds nothing.

    Raises:
        LabelConflict: as ``bind_labels``.
    """
    table = schema.labels
    for label in labels:
        known = connection.execute(
            sa.select(table.c.digest).where(
                table.c.tenant_id == tenant_id,
                table.c.workload == workload,
                table.c.kind == label.kind,
                table.c.version == label.version,
            )
        ).scalar()
        if known is not None and known != label.digest:
            raise LabelConflict(
                f"The {label.kind} version {label.version!r} of {workload} stands for "
                f"{known}, but its content now has the digest {label.digest}.",
                remedy=f"Give the changed {label.kind} a new version.",
            )
