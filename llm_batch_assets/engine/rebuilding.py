"""``adopt --all``: a ledger that is lost, or a day old, from the store and the providers' lists.

The store proves what was asked and what is in evidence; the lists show what was sent. What neither
shows is taken for sent, so that two looks prove its absence before anything is paid for. Words of
people that no evidence carries (holds, releases, publications) are gone with the old ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from llm_batch_assets import finding
from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.specs import job_spec, labels, revision_spec
from llm_batch_assets.engine.surveying import Survey, chosen, survey
from llm_batch_assets.identity import submission_key
from llm_batch_assets.ledger import accounting, adopting, facts, people, views
from llm_batch_assets.ledger import submissions as rows
from llm_batch_assets.ledger.database import to_micros
from llm_batch_assets.ledger.freezing import Supersedes, mark_superseded
from llm_batch_assets.ledger.leases import Lease, held
from llm_batch_assets.ledger.rows import RevisionRow, SubmissionRow
from llm_batch_assets.ledger.states import SENDABLE
from llm_batch_assets.ledger.submissions import MAX_EPOCHS
from llm_batch_assets.manifest import Frozen, Manifest
from llm_batch_assets.types import BatchView

Seen = dict[str, list[BatchView]]
"""submission_key -> batches of this deployment that carry it."""


@dataclass(slots=True)
class Rebuilt:
    """What was restored.

    Attributes:
        bound: shards whose batch was found.
        from_evidence: shards whose evidence is in the store: nothing is fetched for them.
        looked_for: shards of which nobody knows whether they were sent: two looks decide.
        unclear: what only a person can tell.
        unknown: batches of this deployment that no manifest of the store explains.
        damaged: objects of the store that could not be read.
    """

    revisions: int = 0
    jobs: int = 0
    bound: list[str] = field(default_factory=list)
    from_evidence: list[str] = field(default_factory=list)
    looked_for: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """3 when something needs a person, else 0."""
        return 3 if self.unclear or self.unknown or self.damaged else 0

    def as_dict(self) -> dict[str, Any]:
        """For ``--format json``."""
        return asdict(self) | {"exit_code": self.exit_code}

    def lines(self) -> Iterator[str]:
        """The same for people."""
        for name in ("unclear", "unknown", "damaged"):
            yield from (f"{name}: {one}" for one in getattr(self, name))
        yield (
            f"revisions={self.revisions} jobs={self.jobs} bound={len(self.bound)} "
            f"from_evidence={len(self.from_evidence)} looked_for={len(self.looked_for)} "
            f"unclear={len(self.unclear)} unknown={len(self.unknown)}"
        )


def rebuild(deps: Deps, *, reason: str) -> Rebuilt:
    """Restore what the ledger lacks; doing it again restores nothing more.

    Args:
        deps: over the same store and deployment; no other worker may run meanwhile.
        reason: why, for the log of decisions.

    Raises:
        ProviderError: a list could not be read to its end; nothing was written.
        LedgerError: ledger and store contradict each other.
    """
    people.require_reason(reason)
    deps.progress("survey", deps.store.url)
    found = survey(deps.store, deps.ledger.deployment)
    rebuilt = Rebuilt(damaged=found.damaged)
    names = {c.manifest.provider for a in found.manifests.values() for cs in a.values() for c in cs}
    seen, accounts = _walk(sorted(names | set(views.providers(deps.ledger))), deps)

    def was_sent(manifest: Manifest) -> bool:
        keys = (key for ordinal in _ordinals(manifest) for key in _keys(manifest.job_key, ordinal))
        return any(key in seen or key in found.closures for key in keys)

    for name, attempts in sorted(found.manifests.items()):
        jobs, unclear = chosen(attempts, was_sent)
        if unclear is not None:
            rebuilt.unclear.append(f"{name[1]} {name[2]} r{name[3]}: {unclear}")
        if jobs:
            _restore(jobs, found, deps, rebuilt)
    explained: set[str] = set()
    scene = _Scene(deps, found, seen, accounts, rebuilt)
    for view in views.all_revisions(deps.ledger):
        for shard in view.shards:
            keys = _keys(shard.job_key, shard.ordinal)
            explained |= set(keys)
            _settle_shard(shard, keys, scene)
    rebuilt.unknown += [
        f"{view.batch_id} ({key})" for key in sorted(seen.keys() - explained) for view in seen[key]
    ]
    with deps.ledger.write("rebuilt") as connection:
        counts = {"revisions": rebuilt.revisions, "jobs": rebuilt.jobs, "bound": rebuilt.bound}
        people.log_decision(
            connection, deps.ledger, "ledger", "rebuild", deps.worker, reason, counts
        )
    return rebuilt


@dataclass(frozen=True, slots=True)
class _Scene:
    """Everything that the shards are settled by."""

    deps: Deps
    found: Survey
    seen: Seen
    accounts: dict[str, str]
    rebuilt: Rebuilt


def _walk(names: list[str], deps: Deps) -> tuple[Seen, dict[str, str]]:
    """Every list to its end, before anything is written; and the account of each provider."""
    seen: Seen = defaultdict(list)
    accounts = {}
    for name in names:
        provider = deps.provider(name)
        accounts[name] = provider.account()
        deps.progress("list", name)
        for view in provider.list_batches():
            if view.deployment == deps.ledger.deployment and view.submission_key:
                seen[view.submission_key].append(view)
    return dict(seen), accounts


def _ordinals(manifest: Manifest) -> Iterator[int]:
    return (shard.ordinal for shard in manifest.shards)


def _keys(job_key: str, ordinal: int) -> list[str]:
    """The keys of a shard by epoch."""
    return [submission_key(job_key, ordinal, epoch) for epoch in range(MAX_EPOCHS)]


def _restore(jobs: list[Frozen], found: Survey, deps: Deps, rebuilt: Rebuilt) -> None:
    first = jobs[0].manifest
    created = to_micros(first.created_at)
    assert created is not None
    revision, new = adopting.restore_revision(
        deps.ledger, revision_spec(first), labels(first), created
    )
    rebuilt.revisions += new
    for job in jobs:
        at = to_micros(job.manifest.created_at)
        assert at is not None
        _, new = adopting.restore_job(deps.ledger, revision, job_spec(job), deps.worker, at)
        rebuilt.jobs += new
    name = (first.workload, first.dataset, first.revision)
    if name in found.cancelled and revision.cancel_requested_at is None:
        accounting.request_cancel(
            deps.ledger, revision, deps.worker, "cancelled before the ledger was lost"
        )
    _restore_superseded(revision, found, deps)


def _restore_superseded(revision: RevisionRow, found: Survey, deps: Deps) -> None:
    newer = (revision.tenant_id, revision.workload, revision.dataset, revision.revision + 1)
    if newer in found.manifests:
        with deps.ledger.write("restore_superseded") as connection:
            mark_superseded(
                connection,
                deps.ledger,
                Supersedes(revision.id, "superseded before the ledger was lost"),
                deps.worker,
            )


def _settle_shard(shard: SubmissionRow, keys: list[str], scene: _Scene) -> None:
    """Bring every epoch of a shard to where store and provider say it is."""
    deps = scene.deps
    known = [n for n, key in enumerate(keys) if key in scene.seen or key in scene.found.closures]
    last = max([shard.epoch, *known])
    adopting.restore_epochs(
        deps.ledger, shard.shard_id, {n: keys[n] for n in range(last + 1)}, deps.worker
    )
    for epoch, key in enumerate(keys[: last + 1]):
        with deps.ledger.read() as connection:
            row = rows.load(connection, key)
        if row.state not in SENDABLE | {"SUBMITTING", "UNCERTAIN"}:
            continue
        with held(deps.ledger, row.target, deps.worker.holder, deps.settings.lease_ttl) as lease:
            _settle_epoch(row, scene, lease, older=epoch < last)


def _settle_epoch(row: SubmissionRow, scene: _Scene, lease: Lease, *, older: bool) -> None:
    deps, account = scene.deps, scene.accounts[row.provider]
    batches = scene.seen.get(row.submission_key, [])
    closure = None if older else _closure(row, scene.found)
    if row.state in SENDABLE:
        row = adopting.take_for_sent(
            deps.ledger,
            row,
            lease=lease,
            worker=deps.worker,
            account=row.account or account,
            reason="adopt: a ledger that is lost may have sent it",
        )
    if batches:
        if not older:  # an older epoch's batch executed nothing: it is bound, and no stray
            for view in batches:
                facts.record_batch(deps.ledger, account, view, row.submission_key, "adopt")
        row = finding.bind(row, finding.oldest(batches), deps, lease, "adopted")
        scene.rebuilt.bound.append(row.shard_key)
    if closure is not None:
        _from_evidence(row, *closure, deps, lease)
        scene.rebuilt.from_evidence.append(row.shard_key)
    elif not batches:
        if row.state == "SUBMITTING":
            row = finding.uncertain(row, deps, lease, "adopt: looks decide whether it was sent")
        if not older:
            scene.rebuilt.looked_for.append(row.shard_key)
            return
        rows.transition(
            deps.ledger,
            row,
            "ABSENT",
            lease=lease,
            worker=deps.worker,
            reason="adopt: a later epoch of its shard exists",
        )


def _closure(row: SubmissionRow, found: Survey) -> tuple[str, dict[str, Any]] | None:
    """The evidence of a submission, if the store holds exactly one that a batch or refusal gave."""
    closures = {
        digest: document
        for digest, document in found.closures.get(row.submission_key, {}).items()
        if document["basis"] != "never_sent" and document["closed"]
    }
    return next(iter(closures.items())) if len(closures) == 1 else None


def _from_evidence(
    row: SubmissionRow, digest: str, document: dict[str, Any], deps: Deps, lease: Lease
) -> None:
    """Take the arcs that the lost ledger took, up to the evidence that it wrote."""
    steps: list[tuple[str, dict[str, Any]]] = []
    if document["basis"] == "refused":
        steps = [("REFUSED", {})]
    else:
        if row.state in {"SUBMITTING", "UNCERTAIN"}:
            batch = {"batch_id": document["provider_batch_id"], "bound_how": "evidence"}
            steps.append(("SUBMITTED", batch | {"bound_at": deps.ledger.time()}))
        steps += [("RESULTS_AVAILABLE", {"outcome": "completed"}), ("COLLECTED", {"downloads": 1})]
    evidence = {
        "closure_digest": digest,
        "table_digest": document["table"]["object"],
        "answers_digest": document["answers"]["object"],
        "anomalies": sum(document["anomalies"]["counts"].values()),
    }
    with deps.ledger.write("adopt_evidence") as connection:
        for state, values in [*steps, ("ACCOUNTED", evidence)]:
            rows.move(
                connection,
                deps.ledger,
                row,
                state,
                lease=lease,
                worker=deps.worker,
                reason="adopt: its evidence is in the store",
                **values,
            )
            row = rows.load(connection, row.submission_key)
