"""From a frozen manifest to what accounting and settlement need; nothing of the code of the day."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets import identity
from llm_batch_assets.errors import ArtifactError, InputError
from llm_batch_assets.manifest.model import Manifest, ShardSpec
from llm_batch_assets.reconcile.disposal import Policy
from llm_batch_assets.reconcile.evidence import Basis, ShardContext
from llm_batch_assets.reconcile.model import RULES_VERSION, Expected, Gate, Rules
from llm_batch_assets.types import BatchView, Receipt


def policy_of(manifest: Manifest) -> Policy:
    """How often a record may be asked again, and in what company."""
    return Policy(
        manifest.retry.max_attempts, manifest.deterministic, minimum=manifest.batch_minimum
    )


def rules_of(manifest: Manifest, *, gate: Gate | None = None) -> Rules:
    """What accounting judges a manifest's answers by.

    Args:
        manifest: frozen.
        gate: the workload's predicate, loaded by ``load_gate``; not loaded here, because a stranger
            who verifies a folder does not run code that the folder names.

    Raises:
        InputError: when the manifest has a gate and none was given.
    """
    if manifest.gate is not None and gate is None:
        raise InputError(f"The gate {manifest.gate.function} of this manifest was not given.")
    output = manifest.output
    embedding = output.answer == "embedding"
    dimensions = manifest.generation.get("dimensions") if embedding else None
    return Rules(
        provider=manifest.provider,
        endpoint=manifest.endpoint,
        answer=output.answer,
        schema=output.json_schema,
        model=manifest.model,
        attempt=manifest.attempt,
        max_attempts=manifest.retry.max_attempts,
        gate=gate if manifest.gate is not None else None,
        # A body that a record brought itself may hold any number of inputs.
        inputs_per_record=1 if embedding and manifest.body is None else None,
        dimensions=dimensions if isinstance(dimensions, int) else None,
    )


def load_gate(function: str) -> Gate:
    """The gate that a workload names as ``package.module:function``.

    Raises:
        InputError: when it cannot be imported or is no function.
    """
    module, _, name = function.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"gate.function: {function} cannot be imported: {error}.") from None
    if not callable(found):
        raise InputError(f"gate.function: {function} is no function.")
    gate: Gate = found
    return gate


def expected_of(manifest: Manifest, records: pa.Table, shard: int, epoch: int) -> Expected:
    """The ids of one shard in the order of its request file.

    Args:
        manifest: frozen.
        records: its records table (at least record_id, business_key, wire_id, shard).
        shard: ordinal.
        epoch: number of the create.
    """
    spec = shard_of(manifest, shard)
    mine = records.filter(pc.equal(records["shard"], shard)).combine_chunks()
    if mine.num_rows != spec.records:
        raise ArtifactError(
            f"Shard {shard} has {mine.num_rows} rows in the records table, "
            f"{spec.records} in its manifest."
        )
    return Expected(
        wire_ids=mine["wire_id"].to_pylist(),
        tag=spec.tag,
        record_ids=mine["record_id"].to_pylist(),
        business_keys=mine["business_key"].to_pylist(),
        shard=shard,
        epoch=epoch,
        submission_key=identity.submission_key(manifest.job_key, shard, epoch),
    )


def shard_of(manifest: Manifest, ordinal: int) -> ShardSpec:
    """One shard of a manifest.

    Raises:
        ArtifactError: when it has none with this ordinal.
    """
    for spec in manifest.shards:
        if spec.ordinal == ordinal:
            return spec
    raise ArtifactError(f"The manifest of {manifest.job_key} has no shard {ordinal}.")


def ended_views(
    views: tuple[BatchView, ...], receipts: tuple[Receipt, ...]
) -> tuple[BatchView, ...]:
    """The looks as accounting takes them once it was decided to account.

    A batch that is over and still names no file has none to give: without this it would count as
    in flight for ever.
    """
    return views if receipts else tuple(replace(view, results_ready=True) for view in views)


def shard_context(
    manifest: Manifest,
    manifest_digest: str,
    *,
    shard: int,
    epoch: int,
    provider_batch_id: str | None = None,
    basis: Basis = "results",
    receipts: tuple[Receipt, ...] = (),
    earlier: tuple[tuple[Receipt, ...], ...] = (),
    views: tuple[BatchView, ...] = (),
    refusal: dict[str, Any] | None = None,
    person_cancel: bool = False,
) -> ShardContext:
    """The context of a shard's evidence: what the manifest says, filled in."""
    schema = manifest.output.json_schema
    return ShardContext(
        manifest_digest=manifest_digest,
        job_key=manifest.job_key,
        shard=shard,
        attempt=manifest.attempt,
        epoch=epoch,
        submission_key=identity.submission_key(manifest.job_key, shard, epoch),
        provider_batch_id=provider_batch_id,
        rules_version=RULES_VERSION,
        gate_version=manifest.gate.version if manifest.gate is not None else None,
        schema_digest=identity.digest([schema]) if schema is not None else None,
        basis=basis,
        receipts=receipts,
        earlier=earlier,
        views=views,
        refusal=refusal,
        person_cancel=person_cancel,
    )
