"""Our documents among the objects, and every object that each of them names."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llm_batch_assets.artifacts.base import object_key
from llm_batch_assets.errors import ArtifactError, InputError
from llm_batch_assets.identity import canonical_json
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE
from llm_batch_assets.reconcile.merge import JOB_CLOSURE
from llm_batch_assets.reconcile.verify.folder import Folder
from llm_batch_assets.reconcile.verify.report import Report

MANIFEST = "llm_batch_assets.manifest"
KINDS = (MANIFEST, SHARD_CLOSURE, JOB_CLOSURE, REVISION_CLOSURE)

Documents = dict[str, dict[str, dict[str, Any]]]
"""Kind -> digest -> document."""


def read_documents(folder: Folder, report: Report) -> Documents:
    """Every sound object that is a document of ours; unknown versions are faults."""
    found: Documents = {kind: {} for kind in KINDS}
    for digest in folder.sound():
        with folder.fetch(digest) as path:
            document = _parse(path)
        if document is None:
            continue
        if document["kind"] != MANIFEST and not _is_canonical(document, folder.get(digest)):
            report.fault(object_key(digest), "is not as this program writes it")
        if document.get("version") != 1:
            report.fault(object_key(digest), f"is a {document['kind']} of an unknown version")
            continue
        found[document["kind"]][digest] = document
        report.count(document["kind"].rpartition(".")[2] + "s")
    return found


def check_references(folder: Folder, documents: Documents, report: Report) -> None:
    """Everything that a document names is there; what nothing names is noted."""
    named: set[str] = set()
    for kind, of_kind in documents.items():
        for digest, document in of_kind.items():
            for role, reference in _named(kind, digest, document, report):
                named.add(reference)
                if not folder.has(reference):
                    report.fault(
                        object_key(reference), f"is absent; {object_key(digest)} names it as {role}"
                    )
    kinds = {digest: kind for kind, of_kind in documents.items() for digest in of_kind}
    for digest in folder.digests():
        of = kinds.get(digest)
        if digest in named or of == REVISION_CLOSURE:
            continue
        if of is None:
            report.note(object_key(digest), "is named by no document: nothing rests on it")
        else:
            report.note(
                object_key(digest), f"is a {of} that no closure names: in flight, or left behind"
            )


def _named(
    kind: str, digest: str, document: dict[str, Any], report: Report
) -> Iterator[tuple[str, str]]:
    try:
        for role, reference in references(kind, document):
            if reference is not None:
                object_key(reference)
                yield role, reference
    except (KeyError, TypeError, AttributeError, ValueError, ArtifactError) as error:
        report.fault(object_key(digest), f"is no complete {kind}: {error!r}")


def references(kind: str, document: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """(role, digest) of everything that a document names; None where it names nothing."""
    if kind == MANIFEST:
        yield "records table", document["records_digest"]
        for shard in document["shards"]:
            yield f"request file of shard {shard['ordinal']}", shard["digest"]
    elif kind == SHARD_CLOSURE:
        yield "manifest", document["manifest"]
        for role in ("table", "answers", "anomalies"):
            yield role, document[role]["object"]
        for receipts in (document["raw_files"], *document["downloads"]):
            for receipt in receipts:
                yield f"raw {receipt['kind']}", receipt["digest"]
        for view in document["views"]:
            yield "batch object", view
    elif kind == JOB_CLOSURE:
        yield "manifest", document["manifest"]
        yield "records table", document["records_table"]
        yield "table", document["table"]["object"]
        for shard in document["shards"]:
            yield f"closure of shard {shard['shard']}", shard["closure"]
    else:
        for number, attempt in enumerate(document["attempts"], 1):
            yield f"manifest of attempt {number}", attempt["manifest"]
            yield f"records table of attempt {number}", attempt["records_table"]
            for shard in attempt["shards"]:
                role = f"closure of attempt {number}, shard {shard['shard']}"
                yield role, shard["closure"]
        for closure in document["job_closures"]:
            yield "job closure", closure
        yield "table", document["table"]["object"]
        yield "candidate", document["candidate"]["object"]
        yield "decisions", document["facts"]["decisions"]
        yield "carried answers", document["facts"]["carried"]


def _is_canonical(document: dict[str, Any], data: bytes) -> bool:
    try:
        return canonical_json(document) == data
    except InputError:
        return False


def _parse(path: Path) -> dict[str, Any] | None:
    """The document in a file, or None for anything else; large files are not read whole."""
    if path.stat().st_size < 2:
        return None
    with path.open("rb") as file:
        if file.read(1) != b"{":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if not any(data.find(kind.encode()) >= 0 for kind in KINDS):
                return None
            try:
                value = json.loads(data[:])
            except ValueError:
                return None
    return value if isinstance(value, dict) and value.get("kind") in KINDS else None
