"""The report of a revision, as the checks and people read it: from the ledger and the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import NotReady
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.published import published_candidate
from llm_batch_assets.ledger.rows import RevisionRow
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.manifest import Manifest, load_manifest
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets.workload import Workload


@dataclass(frozen=True, slots=True)
class Report:
    """What accounting wrote about a revision.

    Attributes:
        row: the ledger's row of the revision.
        manifest: of attempt 1, which names every id.
        closure: the revision's closure document.
        shards: the closure documents that it rests on, by shard key.
        settled: one row per manifest id.
        candidate: the accepted answers.
        sending: shards whose records are not in evidence yet.
    """

    row: RevisionRow
    manifest: Manifest
    closure: dict[str, Any]
    shards: dict[str, dict[str, Any]] = field(repr=False)
    settled: pa.Table = field(repr=False)
    candidate: pa.Table = field(repr=False)
    sending: int = 0


def find_revision(workload: Workload, dataset: str, deps: Deps) -> RevisionView:
    """The newest revision of a dataset.

    Raises:
        NotReady: nothing is frozen under that name.
    """
    view = views.revision_view(deps.ledger, workload.tenant_id, workload.name, dataset)
    if view is None:
        raise NotReady(
            f"{workload.name} {dataset}: nothing is frozen yet.", remedy="Materialize manifest."
        )
    return view


def load_report(workload: Workload, dataset: str, deps: Deps) -> Report:
    """The latest report of a dataset's newest revision.

    Raises:
        NotReady: nothing is frozen, or nothing of it is accounted yet.
        ArtifactError: the report's own bytes are absent or damaged.
    """
    view = find_revision(workload, dataset, deps)
    if view.row.closure_digest is None:
        raise NotReady(
            f"{workload.name} {dataset} r{view.row.revision}: nothing is accounted yet.",
            remedy="Materialize reconciled_records, or let the sensors go on.",
        )
    closure = read_document(deps.store, view.row.closure_digest, REVISION_CLOSURE)
    shards = {}
    for number, attempt in enumerate(closure["attempts"], start=1):
        for entry in attempt["shards"]:
            name = f"{dataset}/r{view.row.revision}/a{number}/p{entry['shard']:05d}"
            shards[name] = read_document(deps.store, entry["closure"], SHARD_CLOSURE)
    return Report(
        row=view.row,
        manifest=load_manifest(deps.store, view.jobs[0].manifest_digest),
        closure=closure,
        shards=shards,
        settled=read_table(deps.store, closure["table"]["object"]),
        candidate=read_table(deps.store, closure["candidate"]["object"]),
        sending=len(view.in_flight),
    )


def published_table(tenant_id: str, workload: str, dataset: str, deps: Deps) -> pa.Table:
    """The table that the ledger points to as published.

    Raises:
        NotReady: nothing of the dataset is published.
    """
    digest = published_candidate(deps.ledger, tenant_id, workload, dataset)
    if digest is None:
        raise NotReady(
            f"{workload} {dataset}: nothing is published.",
            remedy="It is published when its set closes.",
        )
    return read_table(deps.store, digest)
