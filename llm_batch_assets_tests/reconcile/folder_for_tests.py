"""A real artifact folder: frozen, answered by hand-made OpenAI rows, accounted, settled, closed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from llm_batch_assets.artifacts import ArtifactStore, open_store
from llm_batch_assets.manifest import Frozen, freeze, freeze_retry, read_records
from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.evidence import write_shard_evidence
from llm_batch_assets.reconcile.frozen import expected_of, policy_of, rules_of, shard_context
from llm_batch_assets.reconcile.merge import JobRef, load_attempt, write_job_evidence
from llm_batch_assets.reconcile.model import Answer, RawFile
from llm_batch_assets.reconcile.revision import (
    RevisionContext,
    RevisionEvidence,
    write_revision,
)
from llm_batch_assets.reconcile.settle import Facts, Settlement, settle
from llm_batch_assets.reconcile.unanswered import unanswered
from llm_batch_assets.types import Receipt
from llm_batch_assets.wire.openai.status import read_batch
from llm_batch_assets.workload import Workload

RECORDS = 110
MODEL = "gpt-5-mini-2025-08-07"
NOW = datetime(2026, 7, 28, tzinfo=UTC)
Row = Callable[[str, str, int], list[bytes]]
"""(wire id, business key, place in the shard) -> lines of the result file."""


def workload(**more: Any) -> Workload:
    return Workload(
        name="docs",
        tenant_id="t",
        provider="openai",
        model=MODEL,
        endpoint="/v1/chat/completions",
        business_key="key",
        prompt={"version": "v1", "user": "{{ text }}"},
        generation={"max_output_tokens": 50},
        output={
            "version": "v1",
            "answer": "json",
            "schema": {
                "type": "object",
                "required": ["topic"],
                "additionalProperties": False,
                "properties": {"topic": {"type": "string"}, "score": {"type": "integer"}},
            },
        },
        limits={"records_per_shard": 40},
        **more,
    )


def source() -> list[pa.RecordBatch]:
    texts = [f"text {n}" for n in range(RECORDS)]
    texts[RECORDS - 1] = "no \x01 control characters"
    keys = [f"k{n:03}" for n in range(RECORDS)]
    return [pa.record_batch({"key": keys, "text": texts})]


def gate(answers: list[Answer]) -> list[str | None]:
    """The workload's own rule: some topics are not acceptable."""
    return ["bad topic" if answer.value["topic"].endswith("1") else None for answer in answers]


def good(wire_id: str, key: str, content: str | None = None) -> bytes:
    answer = content if content is not None else json.dumps({"topic": f"about {key}", "score": 3})
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": answer},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
    }
    return _line(wire_id, {"status_code": 200, "request_id": f"req-{key}", "body": body})


def refused(wire_id: str, key: str, status: int) -> bytes:
    body = {"error": {"message": "no", "type": "x", "code": "rate_limit_exceeded"}}
    return _line(wire_id, {"status_code": status, "request_id": f"req-{key}", "body": body})


def _line(wire_id: str, response: dict[str, Any]) -> bytes:
    row = {"id": "batch_req_1", "custom_id": wire_id, "response": response, "error": None}
    return orjson.dumps(row) + b"\n"


def all_good(wire_id: str, key: str, place: int) -> list[bytes]:
    return [good(wire_id, key)]


def hostile(wire_id: str, key: str, place: int) -> list[bytes]:
    """One of every fault, by place in the shard."""
    row = good(wire_id, key)
    return {
        3: [],
        11: [row, row],
        12: [row, good(wire_id, key, '{"topic": "another"}')],
        13: [refused(wire_id, key, 429)],
        14: [refused(wire_id, key, 400)],
        15: [good(wire_id, key, '{"topic": 3}')],
        16: [row[:40] + b"\n"],
        17: [row, good("somebody-else", key)],
    }.get(place, [row])


class Builder:
    """Writes what the engine would write."""

    def __init__(self, root: Path, *, with_gate: bool = False) -> None:
        self.root = root
        self.store: ArtifactStore = open_store(str(root))
        more = {"gate": {"version": "g1", "function": "nobody.has:this"}} if with_gate else {}
        self.gate = gate if with_gate else None
        self.frozen: list[Frozen] = [
            freeze(
                workload(**more),
                source(),
                dataset="2026-07-28",
                revision=1,
                deployment="test",
                submitter="tests",
                now=NOW,
                store=self.store,
            )
        ]
        self.shards: list[dict[int, str]] = [{}]
        self.closures: list[str] = []

    def collect(
        self,
        shard: int,
        rows: Row,
        *,
        seed: int = 0,
        copies: int = 1,
        receipt: dict[str, Any] | None = None,
    ) -> None:
        """Account one shard of the newest attempt from rows in a shuffled order."""
        _, records = self.newest()
        mine = [r for r in records.to_pylist() if r["shard"] == shard]
        lines = [x for r in mine for x in rows(r["wire_id"], r["business_key"], r["line"])]
        random.Random(seed).shuffle(lines)
        data = b"".join(lines)
        digest = self.store.put(data)
        got = {"received_bytes": len(data)} | (receipt or {})
        got["announced_bytes"] = got["received_bytes"]
        received = Receipt(
            **{"kind": "results", "ref": "file-out", "digest": digest, "status": 200}
            | {"expected_bytes": None, "content_type": None, "content_encoding": None}
            | {"whole": True, "reason": "x"}
            | got
        )
        self._write(
            shard,
            [RawFile("results", "results", digest, data)],
            {"status": "completed", "output_file_id": "file-out"},
            receipts=(received,),
            earlier=((received,),) * (copies - 1),
        )

    def fail(self, shard: int, errors: list[dict[str, Any]]) -> None:
        """A batch that failed before it ran."""
        self._write(shard, [], {"status": "failed", "errors": {"data": errors}})

    def refuse(self, shard: int) -> None:
        """A create that the provider refused for good."""
        frozen = self.frozen[-1]
        context = shard_context(
            frozen.manifest,
            frozen.manifest_digest,
            shard=shard,
            epoch=0,
            basis="refused",
            refusal={"http_status": 400, "code": "model_not_found", "message": "no such model"},
        )
        _, records = self.newest()
        evidence = write_shard_evidence(self.store, unanswered(records, context), context)
        self.shards[-1][shard] = evidence.closure_digest

    def newest(self) -> tuple[Any, pa.Table]:
        manifest = self.frozen[-1].manifest
        return manifest, read_records(self.store, manifest.records_digest)

    def _write(self, shard: int, files: list[RawFile], batch: dict[str, Any], **more: Any) -> None:
        manifest, records = self.newest()
        view = read_batch({"id": f"batch_{len(self.frozen)}_{shard}", "object": "batch", **batch})
        expected = expected_of(manifest, records, shard, 0)
        result = account(expected, rules_of(manifest, gate=self.gate), files, [view])
        context = shard_context(
            manifest,
            self.frozen[-1].manifest_digest,
            shard=shard,
            epoch=0,
            provider_batch_id=view.batch_id,
            views=(view,),
            **more,
        )
        evidence = write_shard_evidence(self.store, result, context)
        assert evidence.closed
        self.shards[-1][shard] = evidence.closure_digest

    def jobs(self) -> tuple[JobRef, ...]:
        return tuple(
            JobRef(f.manifest.job_key, f.manifest_digest, f.manifest.records_digest, shards)
            for f, shards in zip(self.frozen, self.shards, strict=True)
        )

    def settled(self, facts: Facts | None = None) -> Settlement:
        """Where every record stands now; writes nothing."""
        policy = policy_of(self.frozen[0].manifest)
        return settle([load_attempt(self.store, j) for j in self.jobs()], policy, facts or Facts())

    def settle(self, facts: Facts | None = None) -> tuple[Settlement, RevisionEvidence]:
        """Settle what is there and write the evidence of jobs and revision."""
        jobs, first = self.jobs(), self.frozen[0].manifest
        closures = [
            write_job_evidence(self.store, job, attempt=number).closure_digest
            for number, job in enumerate(jobs, 1)
        ]
        settlement = self.settled(facts)
        context = RevisionContext(
            workload=first.workload,
            dataset=first.dataset,
            revision=first.revision,
            jobs=jobs,
            policy=policy_of(first),
            facts=facts or Facts(),
            job_closures=tuple(closures),
            answer=first.output.answer,
            output_schema=first.output.json_schema,
        )
        return settlement, write_revision(self.store, settlement, context)

    def again(self, selection: pa.Table) -> None:
        """Cut the next attempt."""
        self.frozen.append(
            freeze_retry(
                [f.manifest for f in self.frozen],
                selection=selection,
                attempt=len(self.frozen) + 1,
                submitter="tests",
                now=NOW,
                store=self.store,
            )
        )
        self.shards.append({})


def closed_folder(root: Path, *, with_gate: bool = False) -> tuple[Builder, RevisionEvidence]:
    """Two attempts, every kind of evidence, closed; the only open report is not written."""
    made = Builder(root, with_gate=with_gate)
    made.collect(0, hostile, copies=2)
    made.fail(1, [{"code": "invalid_json_line", "line": 3}, {"code": "invalid_body", "line": 5}])
    made.refuse(2)
    while not (settled := made.settled()).closed:
        made.again(settled.selection)
        for shard in made.frozen[-1].manifest.shards:
            made.collect(shard.ordinal, all_good, seed=shard.ordinal)
    _, evidence = made.settle()
    return made, evidence


def object_path(root: Path, digest: str) -> Path:
    return root / "objects" / digest[:2] / digest


def put(root: Path, data: bytes) -> str:
    digest = sha256(data).hexdigest()
    path = object_path(root, digest)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return digest
