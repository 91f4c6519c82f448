"""Account a revision from the evidence of its shards, and cut the attempt that it asks for."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets import controller, holds
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.carrying import read_carried
from llm_batch_assets.engine.judging import write_unanswered
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.engine.specs import job_spec, micros
from llm_batch_assets.ledger import accounting, freezing, people
from llm_batch_assets.ledger.database import utc_from_micros
from llm_batch_assets.ledger.leases import Lease, kept
from llm_batch_assets.ledger.rows import JobRow, RevisionRow
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets.ledger.views import RevisionView, view_by_id
from llm_batch_assets.manifest import Manifest, freeze_retry, load_manifest
from llm_batch_assets.reconcile.frozen import policy_of
from llm_batch_assets.reconcile.merge import JobRef, load_attempt, write_job_evidence
from llm_batch_assets.reconcile.revision import RevisionContext, RevisionEvidence, write_revision
from llm_batch_assets.reconcile.settle import Facts, Settlement, settle
from llm_batch_assets.retention import TOTAL_LOSS


def account(revision_id: int, deps: Deps) -> Outcome:
    """Settle a revision as far as its evidence goes; cut the next attempt where one is due.

    Mid-flight it gives a partial report: what is in flight is not missing, and nothing is cut
    unless the controller says so. On a closed revision it writes nothing.
    """
    target = f"revision:{revision_id}"
    with kept(
        deps.ledger,
        target,
        deps.worker.holder,
        deps.settings.lease_ttl,
        heartbeat=deps.settings.heartbeat,
    ) as lease:
        view = view_by_id(deps.ledger, revision_id)
        now = deps.ledger.time()
        if view.row.closed_at is not None:
            return account_outcome(view, changed=False, cut=None)
        if holds.held_overdue(view, now) and people.end_holds(deps.ledger, view.row, deps.worker):
            view = view_by_id(deps.ledger, revision_id)
        deps.progress("account", view.row.dataset)
        basis = controller.basis(view, now)
        changed = basis != view.row.settlement_basis
        manifests = [load_manifest(deps.store, job.manifest_digest) for job in view.jobs]
        settlement = None
        if changed or controller.cut_due(view, now):
            refs = tuple(_job_ref(job, view, deps) for job in view.jobs)
            settlement, evidence, closures = _settle(view, refs, manifests, deps, now)
            if changed:
                row = _write(view, settlement, evidence, closures, basis, deps, lease)
                view = RevisionView(row, view.jobs, view.shards)
        cut = None
        if settlement is not None and controller.cut_due(view, now):
            cut = _cut(view, settlement, manifests, deps, lease)
        return account_outcome(view_by_id(deps.ledger, revision_id), changed=changed, cut=cut)


def _job_ref(job: JobRow, view: RevisionView, deps: Deps) -> JobRef:
    """A job with the closures of its accounted shards.

    What a person cancelled before it was sent has evidence of that, and nothing in the ledger:
    no arc leads there from a submission that never existed at the provider.
    """
    shards = {}
    for shard in view.shards:
        if shard.job_id != job.id:
            continue
        if shard.closure_digest is not None:
            shards[shard.ordinal] = shard.closure_digest
        elif view.row.cancel_requested_at is not None and shard.state in SENDABLE:
            shards[shard.ordinal] = write_unanswered(shard, deps.store).closure_digest
    return JobRef(job.job_key, job.manifest_digest, job.records_digest, shards)


def _settle(
    view: RevisionView,
    refs: tuple[JobRef, ...],
    manifests: list[Manifest],
    deps: Deps,
    now: int,
) -> tuple[Settlement, RevisionEvidence, dict[int, str]]:
    first = manifests[0]
    policy = policy_of(first)
    facts = Facts(
        cancel_requested=view.row.cancel_requested_at is not None,
        released=holds.released(view),
        deadline_over=holds.overdue(view, now),
        abandoned=holds.abandoned(view),
        gone=frozenset((s.attempt, s.ordinal) for s in view.shards if s.state == "RESULTS_GONE"),
        close_by_passed=holds.close_by_passed(view, now),
        carried=read_carried(deps.store, first),
    )
    settlement = settle([load_attempt(deps.store, ref) for ref in refs], policy, facts)
    closures = {
        job.id: write_job_evidence(deps.store, ref, attempt=job.attempt).closure_digest
        for job, ref in zip(view.jobs, refs, strict=True)
        if _is_accounted(job, view)
    }
    context = RevisionContext(
        workload=view.row.workload,
        dataset=view.row.dataset,
        revision=view.row.revision,
        jobs=refs,
        policy=policy,
        facts=facts,
        job_closures=tuple(closures.values()),
        answer=first.output.answer,
        output_schema=first.output.json_schema,
    )
    return settlement, write_revision(deps.store, settlement, context), closures


def _is_accounted(job: JobRow, view: RevisionView) -> bool:
    return all(s.state == "ACCOUNTED" for s in view.shards if s.job_id == job.id)


def _write(
    view: RevisionView,
    settlement: Settlement,
    evidence: RevisionEvidence,
    closures: dict[int, str],
    basis: str,
    deps: Deps,
    lease: Lease,
) -> RevisionRow:
    states = evidence.states
    settled = accounting.Settled(
        settlement_basis=basis,
        closure_digest=evidence.closure_digest,
        candidate_digest=evidence.candidate_digest,
        candidate_rows_digest=evidence.candidate_rows_digest,
        open=states["open"],
        accepted=states["accepted"],
        human_review=states["human_review"],
        permanent_failure=states["permanent_failure"],
        cancelled=states["cancelled"],
        retry_wanted=settlement.selection.num_rows,
        closed=settlement.closed,
    )
    return accounting.settle(deps.ledger, view.row, settled, closures, lease)


def _cut(
    view: RevisionView,
    settlement: Settlement,
    manifests: list[Manifest],
    deps: Deps,
    lease: Lease,
) -> JobRow:
    """Freeze exactly the records that go again, and name it by compare-and-set."""
    now = deps.ledger.time()
    attempt = view.attempt + 1
    deps.progress("cut", f"{view.row.dataset} attempt {attempt}")
    frozen = freeze_retry(
        manifests,
        selection=settlement.selection,
        attempt=attempt,
        submitter=manifests[0].submitter,
        now=utc_from_micros(now),
        store=deps.store,
        records_per_shard=_smaller(settlement.selection, manifests),
    )
    wait = manifests[0].retry.backoff.delay(attempt - 1)
    basis = view.row.settlement_basis
    assert basis is not None
    return freezing.cut_job(
        deps.ledger,
        view.row,
        job_spec(frozen),
        basis,
        lease,
        deps.worker,
        due_at=now + micros(wait),
    )


def _smaller(selection: pa.Table, manifests: list[Manifest]) -> int | None:
    """Half the size of the largest shard that expired whole, where expiry loses everything."""
    if manifests[0].provider not in TOTAL_LOSS:
        return None
    by_key = {manifest.job_key: manifest for manifest in manifests}
    expired = selection.filter(pc.equal(selection["retry_reason"], "expired"))
    groups = expired.group_by(["parent_job_key", "parent_shard"]).aggregate([([], "count_all")])
    sizes = [
        row["count_all"]
        for row in groups.to_pylist()
        if row["count_all"] == by_key[row["parent_job_key"]].shards[row["parent_shard"]].records
    ]
    return (max(sizes) + 1) // 2 if sizes else None


def account_outcome(view: RevisionView, *, changed: bool, cut: JobRow | None = None) -> Outcome:
    """What a revision's latest accounting says, for events and people."""
    row = view.row
    state = "open" if row.closed_at is None else "closed"
    message = (
        f"{row.dataset} r{row.revision} is {state}: {row.accepted or 0} accepted, "
        f"{row.human_review or 0} human_review, {row.permanent_failure or 0} permanent_failure, "
        f"{row.cancelled or 0} cancelled, {row.open if row.open is not None else row.records} open"
    )
    if cut is not None:
        message += f"; attempt {cut.attempt} asks {cut.records} again"
    facts = {
        "records": row.records,
        "accepted": row.accepted,
        "human_review": row.human_review,
        "permanent_failure": row.permanent_failure,
        "cancelled": row.cancelled,
        "open": row.open,
        "attempts": view.attempt,
        "closure": row.closure_digest,
        "next_attempt": None if cut is None else cut.attempt,
        "next_attempt_records": None if cut is None else cut.records,
        "next_attempt_job_key": None if cut is None else cut.job_key,
    }
    return Outcome(
        "account",
        row.dataset,
        state,
        changed or cut is not None,
        message,
        facts,
        row.closure_digest,
    )


def retry_outcome(view: RevisionView, *, cut_now: bool = False) -> Outcome:
    """Which attempt a revision is at: the records that were asked again, if any."""
    newest = view.jobs[-1]
    again = newest.records if newest.attempt > 1 else 0
    return Outcome(
        "account",
        view.row.dataset,
        f"attempt {newest.attempt}",
        cut_now,
        f"{view.row.dataset} r{view.row.revision} is at attempt {newest.attempt}",
        {
            "attempt": newest.attempt,
            "records": again,
            "job_key": newest.job_key,
            "parent_job_key": newest.parent_job_key,
            "cut_now": cut_now,
        },
        newest.job_key,
    )
