"""What a store holds of a deployment: manifests, evidence of shards, people's cancels."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.manifest import Frozen, Manifest
from llm_batch_assets.manifest.model import parse_manifest
from llm_batch_assets.reconcile.candidate import REVISION_CLOSURE
from llm_batch_assets.reconcile.evidence import SHARD_CLOSURE

MANIFEST = "llm_batch_assets.manifest"

_KIND = re.compile(rb'"kind":\s?"llm_batch_assets\.(?:manifest|shard_closure|revision_closure)"')

RevisionName = tuple[str, str, str, int]
"""(tenant, workload, dataset, revision)."""


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        manifests: by revision and attempt; each job once, oldest first.
        closures: submission_key -> closures of shard evidence, by digest.
        cancelled: (workload, dataset, revision) whose evidence says that a person cancelled it.
        damaged: objects that could not be read.
    """

    manifests: dict[RevisionName, dict[int, list[Frozen]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    closures: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    cancelled: set[tuple[str, str, int]] = field(default_factory=set)
    damaged: list[str] = field(default_factory=list)


def survey(store: ArtifactStore, deployment: str) -> Survey:
    """Read every document of a store that is about this deployment."""
    found = Survey()
    for digest in store.digests():
        try:
            document = _document(store, digest)
        except ArtifactError:
            found.damaged.append(digest)
            continue
        if document is None:
            continue
        if document["kind"] == MANIFEST and document.get("deployment") == deployment:
            _add_manifest(found, store, digest)
        elif document["kind"] == SHARD_CLOSURE:
            found.closures[document["submission_key"]][digest] = document
        elif document["kind"] == REVISION_CLOSURE and document["facts"]["cancel_requested"]:
            found.cancelled.add((document["workload"], document["dataset"], document["revision"]))
    for attempts in found.manifests.values():
        for candidates in attempts.values():
            candidates.sort(key=lambda f: (f.manifest.created_at, f.manifest_digest))
    return found


def _add_manifest(found: Survey, store: ArtifactStore, digest: str) -> None:
    manifest = parse_manifest(store.get(digest), f"Object {digest}")
    name = (manifest.tenant_id, manifest.workload, manifest.dataset, manifest.revision)
    found.manifests[name][manifest.attempt].append(Frozen(manifest, digest))


def _document(store: ArtifactStore, digest: str) -> dict[str, Any] | None:
    """A document of ours, or None for anything else; big files are not read into memory."""
    with store.fetch(digest) as path:
        with path.open("rb") as file:
            if file.read(1) != b"{":
                return None
            file.seek(0)
            tail = b""
            while chunk := file.read(1 << 20):
                if _KIND.search(tail + chunk):
                    break
                tail = chunk[-128:]
            else:
                return None
        try:
            document = json.loads(path.read_bytes())
        except ValueError:
            return None
    return document if isinstance(document, dict) and "kind" in document else None


def chosen(
    attempts: Mapping[int, list[Frozen]], was_sent: Callable[[Manifest], bool]
) -> tuple[list[Frozen], str | None]:
    """The jobs of a revision, attempt 1 first, and why the rest is not clear (None if it is).

    Several manifests may claim one attempt: a cut that lost its race left one behind. What was
    sent, or has children that were, is the one; where nothing tells, nobody guesses.

    Args:
        attempts: attempt -> candidates, oldest first.
        was_sent: whether a provider or evidence shows any submission of a job.
    """
    jobs: list[Frozen] = []
    for attempt in range(1, max(attempts, default=0) + 1):
        candidates = _distinct(attempts.get(attempt, ()))
        if attempt > 1:
            parent = jobs[-1].manifest.job_key
            candidates = [c for c in candidates if c.manifest.parent_job_key == parent]
        if len(candidates) > 1:
            told = [c for c in candidates if was_sent(c.manifest) or _has_child(c, attempts)]
            candidates = told or candidates
        if len(candidates) > 1:
            return jobs, f"{len(candidates)} manifests claim attempt {attempt}"
        if not candidates:
            return jobs, None
        jobs.append(candidates[0])
    return jobs, None


def _distinct(candidates: Iterable[Frozen]) -> list[Frozen]:
    """One manifest per job: frozen twice, a job differs in its time only."""
    by_key: dict[str, Frozen] = {}
    for candidate in candidates:
        by_key.setdefault(candidate.manifest.job_key, candidate)
    return list(by_key.values())


def _has_child(candidate: Frozen, attempts: Mapping[int, list[Frozen]]) -> bool:
    children = attempts.get(candidate.manifest.attempt + 1, ())
    return any(c.manifest.parent_job_key == candidate.manifest.job_key for c in children)
