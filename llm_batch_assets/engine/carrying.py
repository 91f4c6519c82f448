"""Answers that a new revision takes over: the same question, accepted before, is not paid again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.ledger.rows import RevisionRow
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.manifest import Manifest, load_manifest, read_records
from llm_batch_assets.manifest.freeze import Prepared
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.tables import put_table, read_table
from llm_batch_assets.workload import Workload

ASKED = ("record_id", "business_key", "source_version", "request_digest")

_TAKEN = ("record_id", "business_key", "source_version", "cls", "evidence_rule", "evidence",
          "file", "line", "offset", "length", "served_model")  # fmt: skip
"""Columns of a settlement that go with an answer; where it came from stays provable."""


def asked(store: ArtifactStore, manifest: Manifest) -> pa.Table:
    """Every question of a revision, carried over or not: record_id, keys and request_digest.

    Args:
        store: where its tables are.
        manifest: of its attempt 1.
    """
    table = read_records(store, manifest.records_digest, ASKED)
    carried = read_carried(store, manifest)
    if carried is None:
        return table
    return pa.concat_tables([table, carried.select(list(ASKED)).cast(table.schema)])


def read_carried(store: ArtifactStore, manifest: Manifest) -> pa.Table | None:
    """What a revision took over, or None."""
    if manifest.carried_digest is None:
        return None
    return read_table(store, manifest.carried_digest)


def accepted(store: ArtifactStore, row: RevisionRow, manifest: Manifest) -> pa.Table | None:
    """What a revision has accepted so far, as the next one would carry it; None for nothing."""
    if row.closure_digest is None:
        return None
    document = read_document(store, row.closure_digest, REVISION_CLOSURE)
    settled = read_table(store, document["table"]["object"])
    settled = settled.filter(pc.equal(settled["state"], "accepted")).combine_chunks()
    if not settled.num_rows:
        return None
    questions = asked(store, manifest)
    at = pc.index_in(settled["record_id"], questions["record_id"].combine_chunks())
    digests = questions["request_digest"].take(at)
    return settled.select(list(_TAKEN)).append_column("request_digest", digests)


def carried_over(rows: pa.Table, sources: Iterator[pa.Table] | Sequence[pa.Table]) -> pa.Table:
    """The part of ``rows`` that a source has answered; the first source that has it wins.

    Args:
        rows: the new revision's questions (``ASKED``).
        sources: tables of ``accepted``, the newest first.
    """
    found: list[pa.Table] = []
    ids = rows["record_id"].combine_chunks()
    done: pa.Array = pa.array([], ids.type)
    for source in sources:
        at = pc.index_in(source["record_id"].cast(ids.type), ids)
        digests = rows["request_digest"].take(at)
        same = pc.fill_null(pc.equal(source["request_digest"].cast(digests.type), digests), False)
        new = pc.invert(pc.is_in(source["record_id"].cast(ids.type), done))
        part = source.filter(pc.and_(same, new)).combine_chunks()
        if part.num_rows:
            found.append(part)
            done = pa.concat_arrays([done, part["record_id"].combine_chunks().cast(ids.type)])
    if not found:
        return pa.table({"record_id": pa.array([], pa.string())})
    return pa.concat_tables(found).combine_chunks()


def same_judgement(old: Manifest, workload: Workload) -> bool:
    """Whether an answer that was accepted then would be judged by the same rules now.

    Prompt, config and schema are in the record's own id; the gate and the kind of answer are not.
    """
    return old.gate == workload.gate and (
        (old.output.answer, old.output.json_schema)
        == (workload.output.answer, workload.output.json_schema)
    )


def sources_of(
    views: Sequence[RevisionView], workload: Workload, store: ArtifactStore
) -> Iterator[pa.Table]:
    """What each of these revisions has accepted, as far as it may be carried over."""
    for view in views:
        manifest = load_manifest(store, view.jobs[0].manifest_digest)
        if same_judgement(manifest, workload):
            table = accepted(store, view.row, manifest)
            if table is not None:
                yield table


def carry(
    prepared: Prepared,
    rows: pa.Table,
    workload: Workload,
    views: Sequence[RevisionView],
    store: ArtifactStore,
) -> None:
    """Take over what these revisions have answered, and leave it out of attempt 1.

    Args:
        prepared: the new revision before its commit.
        rows: its questions (``ASKED``).
        workload: as it is now.
        views: whose answers may be taken, the newest first.
        store: where the table that names them goes.
    """
    table = carried_over(rows, sources_of(views, workload, store))
    if table.num_rows:
        prepared.carry(table["record_id"].to_pylist(), put_table(store, table))
