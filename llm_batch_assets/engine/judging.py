"""Account the rows of one shard under the rules of its frozen manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import GateFault, InputError
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.manifest import Manifest, load_manifest, read_records
from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.evidence import (
    AccountLike,
    ShardEvidence,
    write_shard_evidence,
)
from llm_batch_assets.reconcile.frozen import (
    ended_views,
    expected_of,
    load_gate,
    rules_of,
    shard_context,
)
from llm_batch_assets.reconcile.model import Answer, RawFile, Rules
from llm_batch_assets.reconcile.unanswered import unanswered
from llm_batch_assets.types import BatchView, Receipt


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the store holds of one ended batch; ``earlier`` are former downloads, oldest first."""

    views: tuple[BatchView, ...]
    receipts: tuple[Receipt, ...] = ()
    earlier: tuple[tuple[Receipt, ...], ...] = ()


def judge(
    row: SubmissionRow, fetched: Fetched, store: ArtifactStore, *, gated: bool = True
) -> AccountLike:
    """Class every id of a shard from its raw files and the looks at its batch.

    Without the workload's own gate (``gated`` false) only whether the account is closed holds.

    Raises:
        GateFault: the manifest names a gate that is no longer in the code.
    """
    manifest = load_manifest(store, row.manifest_digest)
    records = read_records(store, manifest.records_digest)
    expected = expected_of(manifest, records, row.ordinal, row.epoch)
    views = ended_views(fetched.views, fetched.receipts)
    with mmap_files(store, fetched.receipts) as files:
        return account(expected, _rules(manifest, gated=gated), files, views)


def _rules(manifest: Manifest, *, gated: bool) -> Rules:
    if manifest.gate is None or not gated:
        return rules_of(manifest, gate=_passes)
    try:
        return rules_of(manifest, gate=load_gate(manifest.gate.function))
    except InputError as error:
        raise GateFault(
            f"The gate {manifest.gate.function} that the frozen manifest of {manifest.workload} "
            f"{manifest.dataset} names cannot be used any more: {error}"
        ) from error


def _passes(answers: list[Answer]) -> Sequence[str | None]:
    return [None] * len(answers)


def write_evidence(
    row: SubmissionRow, judged: AccountLike, fetched: Fetched, store: ArtifactStore
) -> ShardEvidence:
    """Store the evidence of a shard that a batch ran for."""
    context = shard_context(
        load_manifest(store, row.manifest_digest),
        row.manifest_digest,
        shard=row.ordinal,
        epoch=row.epoch,
        provider_batch_id=row.batch_id,
        receipts=fetched.receipts,
        earlier=fetched.earlier,
        views=fetched.views,
        person_cancel=row.cancel_requested_at is not None,
    )
    return write_shard_evidence(store, judged, context)


def write_unanswered(row: SubmissionRow, store: ArtifactStore) -> ShardEvidence:
    """Store the evidence of a shard that no batch ran for: refused for good, or never sent."""
    manifest = load_manifest(store, row.manifest_digest)
    refused = row.state == "REFUSED"
    refusal = None
    if refused:
        _, status, code = (row.outcome or "refused::").split(":", 2)
        refusal = {
            "http_status": int(status) if status.isdigit() else None,
            "code": code or None,
            "message": row.last_error,
            "request_id": None,
        }
    context = shard_context(
        manifest,
        row.manifest_digest,
        shard=row.ordinal,
        epoch=row.epoch,
        basis="refused" if refused else "never_sent",
        refusal=refusal,
        person_cancel=not refused,
    )
    records = read_records(store, manifest.records_digest)
    return write_shard_evidence(store, unanswered(records, context), context)


@contextmanager
def mmap_files(store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterator[list[RawFile]]:
    """Whole raw files of the store, mapped: no step holds their bytes twice."""
    with ExitStack() as stack:
        files = []
        for receipt in receipts:
            path = stack.enter_context(store.fetch(receipt.digest))
            data: bytes | mmap = b""
            if path.stat().st_size:
                file = stack.enter_context(path.open("rb"))
                data = stack.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
            files.append(
                RawFile(receipt.kind, receipt.kind, receipt.digest, data, whole=receipt.whole)
            )
        yield files


def holds_only(table: pa.Table, column: str, allowed: frozenset[str]) -> bool:
    """Whether a text column has no value outside a set; nulls are outside."""
    inside = pc.is_in(table[column], pa.array(sorted(allowed), pa.string()))
    return bool(pc.all(inside, min_count=0).as_py())
