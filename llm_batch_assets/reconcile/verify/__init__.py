"""Recompute everything that a copied artifact folder claims, from its bytes alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from llm_batch_assets.artifacts.base import object_key
from llm_batch_assets.errors import ArtifactError, LLMBatchError
from llm_batch_assets.manifest.model import Manifest
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE
from llm_batch_assets.reconcile.merge import JOB_CLOSURE
from llm_batch_assets.reconcile.model import Gate
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets.reconcile.verify.documents import (
    MANIFEST,
    check_references,
    read_documents,
)
from llm_batch_assets.reconcile.verify.folder import Folder
from llm_batch_assets.reconcile.verify.manifests import check_manifest
from llm_batch_assets.reconcile.verify.report import Finding, Report
from llm_batch_assets.reconcile.verify.revisions import check_job, check_revision
from llm_batch_assets.reconcile.verify.shards import check_shard

__all__ = ["Finding", "Report", "verify"]


def verify(
    path: Path,
    *,
    closure: str | None = None,
    gate: Gate | None = None,
    rules: Literal["recorded", "current"] = "recorded",
) -> Report:
    """Check a copied artifact folder; no ledger, no network, and nothing is written.

    Every object's bytes against its name; every document's references; every manifest's names
    against its records and request files; every shard's evidence against its raw files; every job
    and revision against its shards. What differs is named by file.

    Args:
        path: the folder with ``objects/`` and ``store.json``.
        closure: digest of a revision's closure that must be among what was verified: the anchor
            for a reader who knows it from elsewhere (a ledger, a Dagster event).
        gate: the workload's own predicate, to be run again; without it its verdicts stand.
        rules: ``recorded`` leaves alone what was classed under other rules than this program's and
            says so; ``current`` classes it again under this program's.

    Raises:
        InputError: when the path is no artifact folder.
    """
    report, folder = Report(), Folder(path)
    folder.scan(report)
    documents = read_documents(folder, report)
    check_references(folder, documents, report)
    manifests: dict[str, Manifest] = {}
    records: dict[str, pa.Table] = {}

    def manifest(digest: str) -> None:
        manifests[digest] = check_manifest(folder, digest, report)

    def shard(digest: str) -> None:
        document = documents[SHARD_CLOSURE][digest]
        if document["manifest"] not in manifests:
            raise ArtifactError("its manifest is not sound.")
        frozen = manifests[document["manifest"]]
        if frozen.records_digest not in records:
            records.clear()
            records[frozen.records_digest] = read_table(folder, frozen.records_digest)
        table = records[frozen.records_digest]
        check_shard(folder, digest, document, frozen, table, report, gate=gate, rules=rules)

    def job(digest: str) -> None:
        check_job(folder, digest, documents[JOB_CLOSURE][digest], manifests, report)

    def revision(digest: str) -> None:
        document = documents[REVISION_CLOSURE][digest]
        check_revision(folder, digest, document, manifests, report, rules=rules)

    for kind, check in (
        (MANIFEST, manifest),
        (SHARD_CLOSURE, shard),
        (JOB_CLOSURE, job),
        (REVISION_CLOSURE, revision),
    ):
        # The shards of one job together: its records table is read once.
        for digest in sorted(
            documents[kind], key=lambda d: str(documents[kind][d].get("manifest"))
        ):
            _guarded(check, digest, report)
    if closure is not None and closure not in {r["closure"] for r in report.revisions}:
        report.fault(closure, "is no revision's closure in this folder")
    report.revisions.sort(key=_place)
    report.faults.sort()
    report.notes.sort()
    return report


def _place(revision: dict[str, Any]) -> tuple[str, str, int, int, int]:
    """Reports of one revision in the order in which they were written: the last one stands."""
    name = (str(revision["workload"]), str(revision["dataset"]), int(revision["revision"]))
    return (*name, int(revision["attempts"]), -int(revision["states"].get("open", 0)))


def _guarded(check: Callable[[str], None], digest: str, report: Report) -> None:
    """A document from a stranger may be wrong in any way: it is a fault, not a crash."""
    try:
        check(digest)
    except (LLMBatchError, pa.ArrowException, KeyError, TypeError, ValueError, IndexError) as error:
        kind = "" if isinstance(error, LLMBatchError) else f"{type(error).__name__}: "
        report.fault(object_key(digest), f"cannot be recomputed: {kind}{error}")
