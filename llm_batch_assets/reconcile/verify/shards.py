"""Recompute one shard's evidence from its raw files, its manifest and the batch's own words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from mmap import ACCESS_READ, mmap
from typing import Any

import pyarrow as pa

from llm_batch_assets.artifacts.base import object_key
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.manifest.model import Manifest
from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.digests import rows_digest
from llm_batch_assets.reconcile.evidence import (
    AccountLike,
    ShardContext,
    shard_closure,
    shard_tables,
)
from llm_batch_assets.reconcile.frozen import (
    ended_views,
    expected_of,
    rules_of,
    shard_context,
)
from llm_batch_assets.reconcile.model import RULES_VERSION, Answer, Gate, RawFile
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets.reconcile.unanswered import unanswered
from llm_batch_assets.reconcile.verify.folder import Folder
from llm_batch_assets.reconcile.verify.report import Report, differences, row_differences
from llm_batch_assets.types import BatchView, Receipt
from llm_batch_assets.wire.readers import wire_of

GATE_RULE = "quality.gate"
_GATE_PREFIX = "gate: "


def check_shard(
    folder: Folder,
    digest: str,
    document: Mapping[str, Any],
    manifest: Manifest,
    records: pa.Table,
    report: Report,
    *,
    gate: Gate | None = None,
    rules: str = "recorded",
) -> None:
    """Compare a shard's closure and tables with what its raw files give.

    Args:
        folder: the artifact folder.
        digest: of the closure.
        document: the closure.
        manifest: the one that it names.
        records: the manifest's records table.
        report: takes what differs.
        gate: the workload's predicate, if the reader trusts it enough to run it; without it the
            gate's recorded verdicts are taken as they are.
        rules: ``recorded`` recomputes classes only under the version that they were made under,
            ``current`` under this program's.

    Raises:
        ArtifactError: when something that it names is absent or damaged.
    """
    name = object_key(digest)
    table = read_table(folder, document["table"]["object"])
    answers = read_table(folder, document["answers"]["object"])
    for what, object_table in (("table", table), ("answers", answers)):
        if rows_digest(object_table) != document[what]["rows_digest"]:
            report.fault(object_key(document[what]["object"]), f"its rows are not those of {name}")
    if document["rules_version"] != RULES_VERSION and rules == "recorded":
        report.note(
            name,
            f"was made under rules {document['rules_version']}; this program has {RULES_VERSION}: "
            "its classes were not recomputed (--rules current does)",
        )
        return
    context = _context(folder, document, manifest)
    if manifest.gate is not None and gate is None:
        gate = replay(table)
        report.note(name, f"the gate {manifest.gate.function} was not run: its verdicts stand")
    with raw_files(folder, context.receipts) as files:
        computed = _account(manifest, records, context, files, gate)
        tables = shard_tables(computed, context)
        closure = shard_closure(tables, computed, context)
    closure["views"] = document["views"]
    if rules == "current":
        closure["rules_version"] = document["rules_version"]
    for what in ("table", "answers", "anomalies"):
        stored = document[what]["object"]
        closure[what]["object"] = stored
        recorded = read_table(folder, stored) if stored is not None else None
        _compare(what, stored, recorded, getattr(tables, what), name, report)
    for line in differences(document, closure):
        report.fault(name, line)
    report.count("shards")


def replay(table: pa.Table) -> Gate:
    """A gate that repeats the verdicts of recorded evidence."""
    verdicts = {
        row["record_id"]: row["reason"].removeprefix(_GATE_PREFIX)
        for row in table.select(["record_id", "rule", "reason"]).to_pylist()
        if row["rule"] == GATE_RULE
    }

    def gate(answers: list[Answer]) -> Sequence[str | None]:
        return [verdicts.get(answer.record_id) for answer in answers]

    return gate


@contextmanager
def raw_files(folder: Folder, receipts: Sequence[Receipt]) -> Iterator[list[RawFile]]:
    """The raw files of a shard, mapped into memory."""
    with ExitStack() as stack:
        files = []
        for receipt in receipts:
            path = stack.enter_context(folder.fetch(receipt.digest))
            size = path.stat().st_size
            if fault := _receipt_fault(receipt, size):
                raise ArtifactError(f"{object_key(receipt.digest)} {fault}.")
            data: bytes | mmap = b""
            if size:
                file = stack.enter_context(path.open("rb"))
                data = stack.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
            files.append(
                RawFile(receipt.kind, receipt.kind, receipt.digest, data, whole=receipt.whole)
            )
        yield files


def _receipt_fault(receipt: Receipt, size: int) -> str | None:
    """What a receipt says that its file contradicts; lengths on the wire count encoded bytes."""
    if not receipt.whole:
        return "is a copy whose receipt does not say that it is whole"
    lengths = [("the provider counts", receipt.expected_bytes, size)]
    lengths.append(("the transfer announced", receipt.announced_bytes, receipt.received_bytes))
    if receipt.content_encoding is None:
        lengths.append(("its receipt counts", receipt.received_bytes, size))
    for who, told, found in lengths:
        if told is not None and told != found:
            return f"has {found} bytes where {who} {told}"
    return None


def _context(folder: Folder, document: Mapping[str, Any], manifest: Manifest) -> ShardContext:
    read_batch = wire_of(manifest.provider).read_batch
    views: tuple[BatchView, ...] = tuple(
        read_batch(json.loads(folder.get(view))) for view in document["views"]
    )
    return shard_context(
        manifest,
        document["manifest"],
        shard=document["shard"],
        epoch=document["epoch"],
        provider_batch_id=views[-1].batch_id if views else document["provider_batch_id"],
        basis=document["basis"],
        receipts=_receipts(document["raw_files"]),
        earlier=tuple(_receipts(entries) for entries in document["downloads"]),
        views=views,
        refusal=document["refusal"],
        person_cancel=document["person_cancel"],
    )


def _account(
    manifest: Manifest,
    records: pa.Table,
    context: ShardContext,
    files: list[RawFile],
    gate: Gate | None,
) -> AccountLike:
    if context.basis != "results":
        return unanswered(records, context)
    expected = expected_of(manifest, records, context.shard, context.epoch)
    views = ended_views(context.views, context.receipts)
    return account(expected, rules_of(manifest, gate=gate), files, views)


def _receipts(entries: Sequence[Mapping[str, Any]]) -> tuple[Receipt, ...]:
    return tuple(Receipt(**entry) for entry in entries)


def _compare(
    what: str,
    stored: str | None,
    recorded: pa.Table | None,
    computed: pa.Table,
    closure: str,
    report: Report,
) -> None:
    if recorded is None or stored is None:
        if computed.num_rows:
            report.fault(closure, f"{what}: names no table, {computed.num_rows} rows recomputed")
        return
    if rows_digest(recorded) == rows_digest(computed):
        return
    for line in row_differences(recorded, computed):
        report.fault(object_key(stored), f"({what}) {line}")
