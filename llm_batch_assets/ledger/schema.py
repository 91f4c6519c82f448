"""Tables of the ledger. Rows per shard, never per record: records live in Parquet.

Times are BIGINT microseconds UTC, money BIGINT nano-dollars. Every name with a meaning (a
manifest of a job, evidence of a shard, the current version of a dataset) is a row here, first
writer wins.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

# SQLite gives rowid semantics (autoincrement) only to INTEGER primary keys.
Id = BigInteger().with_variant(Integer, "sqlite")
Micros = BigInteger

TO_SEND = "state IN ('VALIDATED', 'UPLOADED')"
"""``states.SENDABLE`` as an index and the query that shall use it spell it, word for word."""

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

labels = Table(
    "labels",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("workload", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("bound_at", Micros, nullable=False),
)

revisions = Table(
    "revisions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("tenant_id", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("provider", Text, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("created_at", Micros, nullable=False),
    # Policy of the manifest that gates read in SQL; the manifest stays the truth for all of it.
    Column("open_datasets", Integer, nullable=False),
    Column("min_accepted_ppm", Integer, nullable=False),
    Column("cut_after", Micros, nullable=False),
    Column("close_by", Micros, nullable=False),
    Column("hold_deadline", Micros, nullable=False),
    # Wait between publication and removing the provider's copies; 0 at once, null never.
    Column("delete_after", Micros),
    # Answers that an older revision accepted: how many, and the table that names them.
    Column("carried", BigInteger),
    Column("carried_digest", Text),
    # Facts beside the state.
    Column("started_at", Micros),
    Column("hold", Text),
    Column("hold_release", Text),
    Column("cancel_requested_at", Micros),
    Column("cancel_by", Text),
    Column("cancel_reason", Text),
    Column("superseded_at", Micros),
    Column("superseded_by", Text),
    Column("superseded_reason", Text),
    # The latest accounting of the whole revision, and the basis it was computed from.
    Column("settled_at", Micros),
    Column("settlement_basis", Text),
    Column("closure_digest", Text),
    Column("candidate_digest", Text),
    Column("candidate_rows_digest", Text),
    Column("open", BigInteger),
    Column("accepted", BigInteger),
    Column("human_review", BigInteger),
    Column("permanent_failure", BigInteger),
    Column("cancelled", BigInteger),
    Column("retry_wanted", BigInteger),
    Column("closed_at", Micros),
    Column("published_at", Micros),
    Column("published_version", Integer),
    Column("published_closure", Text),
    Column("withheld_closure", Text),
    Column("withheld_reason", Text),
    # A person's word that this closure is published although a gate withholds it.
    Column("word_closure", Text),
    Column("word_by", Text),
    Column("word_reason", Text),
    UniqueConstraint("tenant_id", "workload", "dataset", "revision"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("revision_id", ForeignKey("revisions.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("job_key", Text, nullable=False, unique=True),
    Column("parent_job_key", Text),
    Column("input_manifest_hash", Text, nullable=False),
    Column("manifest_digest", Text, nullable=False),
    Column("records_digest", Text, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("kept_back", BigInteger, nullable=False),
    Column("basis", Text),
    Column("created_at", Micros, nullable=False),
    Column("accounted_at", Micros),
    Column("closure_digest", Text),
    UniqueConstraint("revision_id", "attempt"),
)

shards = Table(
    "shards",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("shard_key", Text, nullable=False),
    Column("request_digest", Text, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("tag", Text, nullable=False),
    UniqueConstraint("job_id", "ordinal"),
)

submissions = Table(
    "submissions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("shard_id", ForeignKey("shards.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("submission_key", Text, nullable=False, unique=True),
    Column("state", Text, nullable=False),
    Column("state_at", Micros, nullable=False),
    Column("due_at", Micros, nullable=False),
    Column("tries", Integer, nullable=False, default=0),
    Column("last_error", Text),
    # Flags beside the state.
    Column("hold", Text),
    Column("hold_release", Text),
    Column("hold_at", Micros),
    Column("cancel_requested_at", Micros),
    Column("cancel_sent_at", Micros),
    Column("released_at", Micros),
    Column("abandoned_at", Micros),
    # Intent: committed before the POST.
    Column("account", Text),
    Column("input_ref", Text),
    Column("posted_at", Micros),
    Column("post_deadline", Micros),
    # The newest batch of the account before the POST: what is looked for is newer than this.
    Column("fence", Text),
    # Looking for a batch whose create was never answered.
    Column("first_look_at", Micros),
    Column("input_deleted_at", Micros),
    Column("looks", Integer, nullable=False, default=0),
    # The bound batch and what polling last said.
    Column("batch_id", Text),
    Column("bound_how", Text),
    Column("bound_at", Micros),
    Column("provider_created_at", Micros),
    Column("raw_status", Text),
    Column("outcome", Text),
    Column("total", BigInteger),
    Column("done", BigInteger),
    Column("failed", BigInteger),
    Column("polled_at", Micros),
    Column("poll_faults", Integer, nullable=False, default=0),
    Column("result_deadline", Micros),
    Column("remote_deleted_at", Micros),
    # Evidence.
    Column("view_digest", Text),
    Column("downloads", Integer, nullable=False, default=0),
    Column("collected_at", Micros),
    Column("closure_digest", Text),
    Column("table_digest", Text),
    Column("answers_digest", Text),
    Column("anomalies", Integer),
    UniqueConstraint("shard_id", "epoch"),
    Index("submissions_by_state", "state", "due_at"),
    # What waits to be sent, in the order in which it is taken; small however long the history.
    Index(
        "submissions_to_send",
        "due_at",
        "id",
        sqlite_where=text(TO_SEND),
        postgresql_where=text(TO_SEND),
    ),
)

transitions = Table(
    "transitions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("submission_id", ForeignKey("submissions.id"), nullable=False),
    Column("from_state", Text),
    Column("to_state", Text, nullable=False),
    Column("at", Micros, nullable=False),
    Column("actor", Text, nullable=False),
    Column("run_id", Text),
    Column("reason", Text, nullable=False),
    Column("raw_status", Text),
    Index("transitions_of_submission", "submission_id"),
)

provider_batches = Table(
    "provider_batches",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("account", Text, nullable=False),
    Column("batch_id", Text, nullable=False),
    Column("submission_key", Text, nullable=False),
    Column("provider_created_at", Micros),
    Column("seen_at", Micros, nullable=False),
    Column("seen_how", Text, nullable=False),
    Column("deleted_at", Micros),
    UniqueConstraint("account", "batch_id"),
    Index("provider_batches_of_submission", "submission_key"),
)

duplicate_batches = Table(
    "duplicate_batches",
    metadata,
    Column("account", Text, primary_key=True),
    Column("batch_id", Text, primary_key=True),
    Column("submission_key", Text, nullable=False),
    Column("found_at", Micros, nullable=False),
    Column("cancelled_at", Micros),
    Column("reason", Text, nullable=False),
)

rejected_batches = Table(
    "rejected_batches",
    metadata,
    Column("submission_key", Text, primary_key=True),
    Column("batch_id", Text, primary_key=True),
    Column("seen_at", Micros, nullable=False),
    Column("reason", Text, nullable=False),
)

raw_files = Table(
    "raw_files",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("submission_id", ForeignKey("submissions.id"), nullable=False),
    Column("download", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("ref", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("receipt", Text, nullable=False),
    Column("at", Micros, nullable=False),
    UniqueConstraint("submission_id", "download", "kind", "ref"),
)

looks = Table(
    "looks",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("account", Text, nullable=False),
    Column("started_at", Micros, nullable=False),
    Column("ended_at", Micros, nullable=False),
    Column("batches", BigInteger, nullable=False),
    Column("counts", Integer, nullable=False),
    Column("reason", Text, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("target", Text, primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", Micros, nullable=False),
)

dispatches = Table(
    "dispatches",
    metadata,
    Column("work_id", Text, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("asked_at", Micros, nullable=False),
    Column("alerted_at", Micros),
)

announced = Table(
    "announced",
    metadata,
    Column("instance", Text, primary_key=True),
    Column("workload", Text, primary_key=True),
    Column("step", Text, primary_key=True),
    Column("partition", Text, primary_key=True),
    Column("fact_id", Text, nullable=False),
    Column("at", Micros, nullable=False),
)

publications = Table(
    "publications",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("revision_id", ForeignKey("revisions.id"), nullable=False),
    Column("version", Integer, nullable=False),
    Column("closure_digest", Text, nullable=False),
    Column("candidate_digest", Text, nullable=False),
    Column("rows_digest", Text, nullable=False),
    Column("accepted", BigInteger, nullable=False),
    Column("published_at", Micros, nullable=False),
    Column("actor", Text, nullable=False),
    UniqueConstraint("revision_id", "version"),
    UniqueConstraint("revision_id", "closure_digest"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("target", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("at", Micros, nullable=False),
    Column("facts", Text),
    Index("decisions_of_target", "target"),
)

TABLES = metadata.sorted_tables
