"""Revision r+1 of a dataset: late rows, or another prompt over old dates.

What was accepted for the same question is carried over with its evidence, at cost 0. What the old
revision still has at the provider is collected; if the new one would pay for the same questions
again, it waits for them, or a person says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.accounting import account
from llm_batch_assets.engine.admitting import admit
from llm_batch_assets.engine.carrying import asked, carry
from llm_batch_assets.engine.freezing import freeze_outcome
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.engine.specs import job_spec, labels, revision_spec
from llm_batch_assets.errors import InputError, NotReady
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.database import utc_from_micros
from llm_batch_assets.ledger.freezing import Supersedes, mark_superseded, open_revision
from llm_batch_assets.ledger.labels import check_labels
from llm_batch_assets.ledger.people import flag_cancel, require_reason
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets.ledger.views import RevisionView
from llm_batch_assets.manifest import drift, load_manifest, prepare, read_records
from llm_batch_assets.workload import Workload, check_dataset_key

OpenWork = Literal["wait", "cancel", "pay_again"]
"""What becomes of questions that the old revision still has at the provider: wait for them,
cancel them and wait for what comes, or ask them again (booked as superseded)."""


def supersede(
    workload: Workload,
    batches: Iterable[pa.RecordBatch],
    *,
    dataset: str,
    deps: Deps,
    submitter: str,
    reason: str,
    text_keys: bool = False,
    open_work: OpenWork = "wait",
) -> Outcome:
    """Open the next revision of a dataset. Doing it again with the same rows changes nothing.

    Args:
        workload: what is asked of each row from now on.
        batches: all rows of the dataset, read once.
        dataset: the dataset's key.
        deps: what to work with; ``deps.worker.actor`` is who.
        submitter: who asked for it, for the manifest.
        reason: why, for the log of decisions.
        text_keys: key columns are text already (CSV and JSONL).
        open_work: what becomes of questions that are still at the provider.

    Raises:
        InputError: the dataset was never frozen, or there is no reason.
        NotReady: the same questions are still at the provider; the old revision sends nothing any
            more, and the same call goes on when they are collected.
        DatasetError, GateClosed, LabelConflict: as ``freeze``; nothing was written that counts.
    """
    check_dataset_key(dataset)
    require_reason(reason)
    old = views.revision_view(deps.ledger, workload.tenant_id, workload.name, dataset)
    if old is None:
        raise InputError(
            f"{dataset} of {workload.name} was never frozen: there is nothing to supersede.",
            remedy="`llm-batch-assets run` freezes it.",
        )
    with deps.ledger.read() as connection:
        check_labels(connection, workload.tenant_id, workload.name, labels(workload))
    admit(workload, deps)
    deps.progress("supersede", dataset)
    with prepare(
        workload,
        batches,
        dataset=dataset,
        revision=old.row.revision + 1,
        deployment=deps.ledger.deployment,
        submitter=submitter,
        text_keys=text_keys,
    ) as prepared:
        rows = prepared.records()
        before = load_manifest(deps.store, old.jobs[0].manifest_digest)
        difference = drift(asked(deps.store, before), rows)
        if not difference and old.row.superseded_at is None:
            return freeze_outcome(old.row, old.jobs[0], deps, changed=False)
        supersedes = Supersedes(old.row.id, reason)
        old = _settle_open_work(old, rows, supersedes, deps, open_work)
        if workload.reuse != "never":
            carry(prepared, rows, workload, _sources(old, workload, deps), deps.store)
        frozen = prepared.commit(deps.store, utc_from_micros(deps.ledger.time()))
    revision, job, wrote = open_revision(
        deps.ledger,
        revision_spec(frozen.manifest),
        job_spec(frozen),
        labels(frozen.manifest),
        deps.worker,
        supersedes,
    )
    return freeze_outcome(revision, job, deps, changed=wrote)


def _settle_open_work(
    old: RevisionView, rows: pa.Table, supersedes: Supersedes, deps: Deps, open_work: OpenWork
) -> RevisionView:
    """Bring the old revision's accounting up to date, or stop it and say what it waits for."""
    again = _asked_again(old, rows, deps)
    if (again and open_work == "wait") or open_work == "cancel":
        with deps.ledger.write("supersede") as connection:
            mark_superseded(connection, deps.ledger, supersedes, deps.worker)
            if open_work == "cancel":
                flag_cancel(connection, old.row.id, deps.ledger.now(connection))
    if again and open_work != "pay_again":
        raise NotReady(
            f"{again} records of {old.row.dataset} r{old.row.revision} are still at the provider, "
            f"and r{old.row.revision + 1} asks the same: they would be paid for twice.",
            remedy="Collect them and ask again, cancel them, or say that they are paid again.",
        )
    if old.row.closed_at is None:
        account(old.row.id, deps)
    return views.view_by_id(deps.ledger, old.row.id)


def _asked_again(old: RevisionView, rows: pa.Table, deps: Deps) -> int:
    """How many of the new questions the old revision has at the provider, or may have."""
    count = 0
    for shard in old.in_flight:
        if shard.state in SENDABLE:
            continue
        manifest = load_manifest(deps.store, shard.manifest_digest)
        mine = read_records(
            deps.store, manifest.records_digest, ("record_id", "shard", "request_digest")
        )
        mine = mine.filter(pc.equal(mine["shard"], shard.ordinal))
        at = pc.index_in(mine["record_id"], rows["record_id"].combine_chunks())
        same = pc.equal(rows["request_digest"].take(at), mine["request_digest"])
        count += pc.sum(pc.fill_null(same, False)).as_py() or 0
    return count


def _sources(old: RevisionView, workload: Workload, deps: Deps) -> list[RevisionView]:
    """The revisions whose answers may be carried over, the newest first."""
    if workload.reuse == "workload":
        return views.settled_revisions(deps.ledger, workload.tenant_id, workload.name)
    return views.settled_revisions(
        deps.ledger, workload.tenant_id, workload.name, dataset=old.row.dataset
    )
