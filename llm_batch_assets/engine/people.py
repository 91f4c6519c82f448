"""What people decide about a dataset or a submission: hold, release, abandon, adopt.

Each is logged with who and why in the transaction that makes it so.
"""

from __future__ import annotations

import sqlalchemy as sa

from llm_batch_assets import finding
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.errors import GateClosed
from llm_batch_assets.ledger import facts, people, schema
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.leases import held
from llm_batch_assets.ledger.lookup import find_submissions, one_dataset, one_submission
from llm_batch_assets.ledger.rows import RevisionRow, SubmissionRow
from llm_batch_assets.types import BatchView


def named(deps: Deps, target: str, workload: str | None) -> SubmissionRow | RevisionRow:
    """The submission or the dataset that a person names.

    Raises:
        InputError: the ledger has neither, or several workloads have one.
    """
    with deps.ledger.read() as connection:
        found = find_submissions(connection, target, workload)
    if found:
        return one_submission(deps.ledger, target, workload)
    return one_dataset(deps.ledger, target, workload)


def hold(deps: Deps, target: str, reason: str, *, workload: str | None = None) -> Outcome:
    """Keep a dataset or a submission from being sent. Collecting goes on.

    Raises:
        InputError: nothing has this name, or there is no reason.
    """
    row = named(deps, target, workload)
    if isinstance(row, RevisionRow):
        people.hold_dataset(deps.ledger, row, deps.worker, reason)
        name = f"{row.dataset} r{row.revision}"
    else:
        people.hold_submission(deps.ledger, row, deps.worker, reason)
        name = row.shard_key
    return Outcome("hold", name, "held", True, f"{name} is on hold: {reason}", {"reason": reason})


def release(deps: Deps, target: str, reason: str, *, workload: str | None = None) -> Outcome:
    """Release a hold: what was kept back goes again, records that a shard holds included.

    Releasing a shard whose results are gone lets its records be paid for again.

    Raises:
        InputError: nothing has this name, or there is no reason.
        GateClosed: it was abandoned.
    """
    row = named(deps, target, workload)
    if isinstance(row, RevisionRow):
        count = people.release_dataset(deps.ledger, row, deps.worker, reason)
        name = f"{row.dataset} r{row.revision}"
    else:
        count = people.release_submission(deps.ledger, row, deps.worker, reason)
        name = row.shard_key
    message = f"{name} is released: {count} submissions go on"
    return Outcome("release", name, "released", True, message, {"submissions": count})


def abandon(deps: Deps, target: str, reason: str, *, workload: str | None = None) -> Outcome:
    """Give a submission up: its open records go to human_review, a batch of it is cancelled.

    Raises:
        InputError: the ledger has no such submission, or there is no reason.
        GateClosed: its revision is closed.
    """
    row = one_submission(deps.ledger, target, workload)
    people.abandon(deps.ledger, row, deps.worker, reason)
    message = f"{row.shard_key} ({row.state}) is given up: its open records are for human_review"
    return Outcome(
        "abandon", row.shard_key, row.state, True, message, {"submission_key": row.submission_key}
    )


def adopt(
    deps: Deps, target: str, batch_id: str, reason: str, *, workload: str | None = None
) -> Outcome:
    """Bind a batch to an uncertain submission, by a person's word.

    The word is believed as far as nothing speaks against it; rows are still joined by exact wire
    id only, so that a wrong batch gives unknown rows and no answers.

    Raises:
        InputError: the ledger has no such submission, or there is no reason.
        GateClosed: it is not uncertain, or the batch is visibly another one's.
        ProviderError: the provider does not show the batch.
    """
    people.require_reason(reason)
    row = one_submission(deps.ledger, target, workload)
    provider = deps.provider(row.provider)
    account = provider.account()
    if row.account is not None and row.account != account:
        raise GateClosed(
            f"{row.shard_key} was made with another credential.",
            remedy="Run with the key that made it: another key cannot see its batch.",
        )
    view = provider.get(batch_id)
    _check_fits(row, view, deps, labelled=provider.settles_by_label)
    with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lease:
        with deps.ledger.read() as connection:
            row = rows.load(connection, row.submission_key)
        if row.state == "SUBMITTING" and deps.ledger.time() > (row.post_deadline or 0):
            row = finding.uncertain(row, deps, lease, "the worker that claimed it is gone")
        if row.state == "PROVISIONAL":
            row = rows.transition(
                deps.ledger,
                row,
                "UNCERTAIN",
                lease=lease,
                worker=deps.worker,
                reason="a person says which batch it is",
                batch_id=None,
                bound_how=None,
            )
        if row.state != "UNCERTAIN":
            raise GateClosed(f"{row.shard_key} is {row.state}: only UNCERTAIN ones are adopted.")
        facts.record_batch(deps.ledger, account, view, row.submission_key, "person")
        after = finding.bind(row, view, deps, lease, "person")
        if row.hold is not None and row.abandoned_at is None:
            rows.set_hold(deps.ledger, row, None, None)
        with deps.ledger.write("adopt") as connection:
            people.log_decision(
                connection,
                deps.ledger,
                row.target,
                "adopt",
                deps.worker,
                reason,
                {"batch_id": batch_id},
            )
    message = f"{row.shard_key} is bound to {batch_id}"
    return Outcome("adopt", row.shard_key, after.state, True, message, {"batch_id": batch_id})


def _check_fits(row: SubmissionRow, view: BatchView, deps: Deps, *, labelled: bool) -> None:
    """Refuse what is visibly not this submission's batch."""
    labels = (view.deployment, view.submission_key)
    ours = (deps.ledger.deployment, row.submission_key)
    if labels != ours and (labelled or labels != (None, None)):
        raise GateClosed(
            f"{view.batch_id} carries the labels of another submission: "
            f"{view.submission_key or 'none'} of {view.deployment or 'no deployment'}."
        )
    if view.counts.total and view.counts.total != row.records:
        raise GateClosed(
            f"{view.batch_id} has {view.counts.total} requests, {row.shard_key} {row.records}."
        )
    s, p = schema.submissions, schema.provider_batches
    with deps.ledger.read() as connection:
        bound = connection.execute(
            sa.select(s.c.submission_key).where(s.c.batch_id == view.batch_id)
        ).scalars()
        seen = connection.execute(
            sa.select(p.c.submission_key).where(p.c.batch_id == view.batch_id)
        ).scalars()
        others = {*bound, *seen} - {row.submission_key}
    if others:
        raise GateClosed(f"{view.batch_id} is the batch of submission {sorted(others)[0]}.")
