"""From a batch that has ended to evidence: look, download, account, write.

Collecting is never gated: not by review, budget, hold, pause, cancel, or a workload that is no
longer in the code. A short copy changes no record's state.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module

import pyarrow.compute as pc

from llm_batch_assets.deps import Deps
from llm_batch_assets.download import download
from llm_batch_assets.engine.judging import (
    Fetched,
    holds_only,
    judge,
    write_evidence,
    write_unanswered,
)
from llm_batch_assets.engine.outcome import Outcome
from llm_batch_assets.engine.specs import micros
from llm_batch_assets.errors import (
    DownloadError,
    GateClosed,
    GateFault,
    NotReady,
    ProviderError,
    ResultsGone,
)
from llm_batch_assets.identity import submission_key
from llm_batch_assets.ledger import facts, views
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.leases import Lease, kept
from llm_batch_assets.ledger.people import GATE_LOST
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.ledger.states import COLLECTABLE, POLLED
from llm_batch_assets.manifest import load_manifest
from llm_batch_assets.polling import GONE_LOOKS, past_recall
from llm_batch_assets.reconcile.evidence import (
    AccountLike,
    ShardEvidence,
    load_shard_evidence,
    same_bytes,
)
from llm_batch_assets.retention import TOTAL_LOSS
from llm_batch_assets.types import TERMINAL_STATUSES, BatchView, Receipt

MAX_DOWNLOADS = 6
"""So often the same results are fetched before their changing bytes need a person."""

COLLECT_BACKOFF = (5.0, 900.0)
"""First and longest wait in seconds after a download that failed."""

PASSING_REASONS = frozenset({"capacity", "server_error", "timeout"})
"""Why a batch may fail as a whole and the same batch may pass later."""


def collect(row: SubmissionRow, deps: Deps) -> Outcome:
    """Collect a shard whose batch has ended, and write its evidence.

    Raises:
        NotReady: the batch has not ended; the message says how far it is.
        ProviderError, DownloadError: nothing changed but the time at which it is due again.
    """
    if row.state == "ACCOUNTED":
        return _outcome(row, row, load_shard_evidence(deps.store, row.closure_digest or ""))
    _check_ready(row)
    with kept(
        deps.ledger,
        row.target,
        deps.worker.holder,
        deps.settings.lease_ttl,
        heartbeat=deps.settings.heartbeat,
    ) as lease:
        with deps.ledger.read() as connection:
            current = rows.load(connection, row.submission_key)
        if current.state != "ACCOUNTED":
            _check_ready(current)  # another worker was here before the lease
        deps.progress("collect", current.shard_key)
        try:
            return _collect(current, deps, lease)
        except GateFault as error:
            _hold_for_gate(current, error, deps)
            raise
        except (ProviderError, DownloadError) as error:
            if not _is_gone(current, error, deps):
                _postpone(current, deps, error)
                raise
            gone = rows.transition(
                deps.ledger,
                current,
                "RESULTS_GONE",
                lease=lease,
                worker=deps.worker,
                reason=str(error),
                last_error=str(error)[:500],
            )
            return _outcome(row, gone, None)


def _postpone(row: SubmissionRow, deps: Deps, error: Exception) -> None:
    """Nothing has changed but the time at which this shard is collected again."""
    first, longest = COLLECT_BACKOFF
    backoff = (min(first, deps.settings.poll_interval), longest)
    rows.put_off(deps.ledger, row, error, rows.doubled(backoff, row.tries))


def _hold_for_gate(row: SubmissionRow, error: GateFault, deps: Deps) -> None:
    """What is in the store is safe; judging it again before somebody acts would only look busy."""
    _postpone(row, deps, error)
    if row.hold is None:
        release = (
            f"Mend it in the code, then `llm-batch-assets release {row.shard_key}`, or "
            f"`abandon {row.shard_key}` gives its records to human_review."
        )
        rows.set_hold(deps.ledger, row, f"{GATE_LOST}{error}"[:500], release)


def _is_gone(row: SubmissionRow, error: Exception, deps: Deps) -> bool:
    """Whether there is nothing to be fetched any more: paid and lost.

    Results that answered 404 were there later (B08), as long as the provider keeps them. What the
    provider keeps no longer is not asked for ever, whatever it answers; one failure may be ours.
    """
    if row.state != "RESULTS_AVAILABLE":
        return False
    over = past_recall(row, deps.ledger.time())
    if isinstance(error, ResultsGone):
        return error.certain or over or row.tries >= GONE_LOOKS
    return over and row.tries >= GONE_LOOKS


def _collect(row: SubmissionRow, deps: Deps, lease: Lease) -> Outcome:
    if row.state == "ACCOUNTED":
        return _outcome(row, row, load_shard_evidence(deps.store, row.closure_digest or ""))
    if row.state == "REFUSED":
        return _account(row, write_unanswered(row, deps.store), 0, deps, lease)
    if row.state == "PROVIDER_FAILED":
        fetched = Fetched((_look(row, deps),))
        judged = judge(row, fetched, deps.store)
        if _may_pass(judged):
            return _again(row, deps, lease)
        return _write(row, judged, fetched, deps, lease)
    if row.state == "RESULTS_AVAILABLE":
        view = _look(row, deps)
        if _paid_and_lost(view, row.provider):
            raise ResultsGone(
                f"{row.batch_id} says that {view.counts.completed} records were answered, and "
                "names no result file."
            )
        fetched, judged, lost = _fetch(row, view, deps)
        row = rows.transition(
            deps.ledger,
            row,
            "COLLECTED",
            lease=lease,
            worker=deps.worker,
            reason=f"{len(fetched.receipts)} raw files whole",
            raw_status=view.raw_status,
            view_digest=deps.store.put(view.raw),
            downloads=1 + len(fetched.earlier),
            collected_at=deps.ledger.time(),
        )
        if lost is not None:
            raise lost
        return _write(row, judged, fetched, deps, lease)
    fetched = _stored(row, deps)
    return _write(row, judge(row, fetched, deps.store), fetched, deps, lease)


def _look(row: SubmissionRow, deps: Deps) -> BatchView:
    """The batch as it is now: what the evidence of its end rests on."""
    provider = deps.provider(row.provider)
    assert row.batch_id is not None
    if row.account is not None and row.account != provider.account():
        raise DownloadError(
            f"{row.shard_key} was made with another credential.",
            remedy="Run with the key that made it: another key cannot see its results.",
        )
    view = provider.get(row.batch_id)
    if view.status not in TERMINAL_STATUSES:
        raise DownloadError(f"{row.batch_id} says {view.raw_status} after it had ended.")
    return view


def _paid_and_lost(view: BatchView, provider: str) -> bool:
    """Its own counts say that records were answered, and after all patience there is no file.

    A bucket's lifecycle may have removed it, or a permission hides it, or its time is over: sending
    the records again would pay twice, so a person decides. A job that expired where expiry keeps
    nothing is another thing.
    """
    named = any(ref.kind != "bedrock_manifest" for ref in view.results)
    kept = view.status == "done" or (
        view.status in ("expired", "cancelled") and provider not in TOTAL_LOSS
    )
    return kept and not named and bool(view.counts.completed)


def _fetch(
    row: SubmissionRow, view: BatchView, deps: Deps
) -> tuple[Fetched, AccountLike, GateFault | None]:
    """Download until two copies agree, or until one needs no confirmation.

    Fetching needs no gate: where it is lost, all is fetched and only then said.
    """
    lost: GateFault | None = None
    downloads: list[tuple[Receipt, ...]] = []
    first = row.downloads
    while True:
        receipts = tuple(
            download(
                deps.provider(row.provider),
                ref,
                deps.store,
                effects=deps.effects,
                sleep=deps.sleep,
                rng=deps.rng.random,
            )
            for ref in view.results
        )
        for receipt in receipts:
            facts.record_raw_file(
                deps.ledger,
                row,
                download=first + len(downloads) + 1,
                kind=receipt.kind,
                ref=receipt.ref,
                digest=receipt.digest,
                size=receipt.received_bytes,
                receipt=json.dumps(asdict(receipt)),
            )
        downloads.append(receipts)
        fetched = Fetched((view,), receipts, tuple(downloads[:-1]))
        try:
            judged = judge(row, fetched, deps.store, gated=lost is None)
        except GateFault as error:
            lost, judged = error, judge(row, fetched, deps.store, gated=False)
        if judged.closed or same_bytes(receipts, fetched.earlier):
            return fetched, judged, lost
        if len(downloads) >= MAX_DOWNLOADS:
            raise DownloadError(
                f"{row.batch_id} gave {len(downloads)} different copies of its results."
            )


def _stored(row: SubmissionRow, deps: Deps) -> Fetched:
    """What a worker that died after COLLECTED left in ledger and store."""
    assert row.view_digest is not None
    status = import_module(f"llm_batch_assets.wire.{row.provider}.status")
    view = status.read_batch(json.loads(deps.store.get(row.view_digest)))
    by_download: dict[int, list[Receipt]] = {}
    for raw in views.raw_files_of(deps.ledger, row.id):
        by_download.setdefault(raw.download, []).append(Receipt(**json.loads(raw.receipt)))
    copies = [tuple(by_download[number]) for number in sorted(by_download)][-row.downloads :]
    if not copies:
        # A batch without files, looked at as often as it says.
        return Fetched((view,), (), ((),) * (row.downloads - 1))
    return Fetched((view,), copies[-1], tuple(copies[:-1]))


def _may_pass(judged: AccountLike) -> bool:
    """Nothing was executed, nobody is at fault, and waiting may help."""
    table = judged.table
    return (
        holds_only(table, "cls", frozenset({"retryable"}))
        and holds_only(table, "reason", PASSING_REASONS)
        and table["hold"].null_count == table.num_rows
        and not pc.any(table["charged"]).as_py()
    )


def _again(row: SubmissionRow, deps: Deps, lease: Lease) -> Outcome:
    """The batch executed nothing for a reason that passes: the same shard in the next epoch."""
    key = submission_key(row.job_key, row.ordinal, row.epoch + 1)
    backoff = load_manifest(deps.store, row.manifest_digest).retry.backoff
    with deps.ledger.write("failed_again") as connection:
        now = deps.ledger.now(connection)
        rows.move(
            connection,
            deps.ledger,
            row,
            "ACCOUNTED",
            lease=lease,
            worker=deps.worker,
            reason="the batch executed nothing; the next epoch sends it again",
        )
        wait = micros(backoff.delay(row.epoch + 1))
        try:
            rows.next_epoch(connection, row, key, deps.worker, now=now, due_at=now + wait)
        except GateClosed as error:
            raise DownloadError(str(error)) from error
        after = rows.load(connection, key)
    return _outcome(row, after, None)


def _write(
    row: SubmissionRow, judged: AccountLike, fetched: Fetched, deps: Deps, lease: Lease
) -> Outcome:
    evidence = write_evidence(row, judged, fetched, deps.store)
    return _account(row, evidence, len(judged.anomalies), deps, lease)


def _account(
    row: SubmissionRow, evidence: ShardEvidence, anomalies: int, deps: Deps, lease: Lease
) -> Outcome:
    after = rows.transition(
        deps.ledger,
        row,
        "ACCOUNTED",
        lease=lease,
        worker=deps.worker,
        reason=", ".join(f"{n} {name}" for name, n in evidence.counts.items() if n),
        closure_digest=evidence.closure_digest,
        table_digest=evidence.table_digest,
        answers_digest=evidence.answers_digest,
        anomalies=anomalies,
    )
    return _outcome(row, after, evidence)


def _check_ready(row: SubmissionRow) -> None:
    if row.state in COLLECTABLE:
        return
    said, remedy = "it has no results yet", "The sensor collects it when its batch has ended."
    if row.state in POLLED:
        said = f"{row.done or 0}/{row.total or row.records}"
    elif row.state == "RESULTS_GONE":
        said, remedy = "its results are gone", f"`llm-batch-assets show {row.shard_key}` says why."
    raise NotReady(f"{row.shard_key} is {row.state}: {said}", remedy=remedy)


def _outcome(
    before: SubmissionRow, after: SubmissionRow, evidence: ShardEvidence | None
) -> Outcome:
    message = f"{after.shard_key} is {after.state}"
    facts: dict[str, object] = {
        "state": after.state,
        "batch_id": before.batch_id,
        "submission_key": before.submission_key,
        "records": before.records,
        "downloads": after.downloads,
    }
    if evidence is not None:
        classes = {name: n for name, n in evidence.counts.items() if n}
        message += ": " + ", ".join(f"{n} {name}" for name, n in classes.items())
        facts |= classes
        facts |= {
            "closure": evidence.closure_digest,
            "confirmed": evidence.confirmed,
            "warnings": list(evidence.warnings),
        }
    return Outcome(
        "collect",
        before.shard_key,
        after.state,
        before.state != after.state,
        message,
        facts,
        None if evidence is None else evidence.rows_digest,
    )
