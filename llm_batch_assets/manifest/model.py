"""The manifest of one job: the frozen statement of what it asks, as a JSON object in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from llm_batch_assets import identity
from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import ArtifactError
from llm_batch_assets.types import ProviderName
from llm_batch_assets.workload import Workload
from llm_batch_assets.workload.parts import (
    Admission,
    Canary,
    Gate,
    Limits,
    Output,
    Publish,
    Retention,
    Retry,
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ShardSpec(_Frozen):
    """One shard: its request file by sha256, its size, and the tag of its wire ids."""

    ordinal: int
    digest: str
    records: int
    bytes: int
    tag: str


class Manifest(_Frozen):
    """What a job asks, in full: later steps read this and never the code of the day.

    Attributes:
        records_digest: sha256 of the records table (a Parquet object in the store).
        rows_digest: sha256 over that table's canonical rows (``manifest.records.rows_digest``).
        expected_record_count: every record of the job, kept back by preflight or not.
        preflight_rejected: how many of them preflight kept back.
        batch_minimum: fewest records that the provider runs a batch for.
        carried_digest: sha256 of the table of answers that the revision takes over from older
            ones (None without any); their records are in no job of the revision.
        temperature: as asked, None where nothing was asked. With ``seed`` it says whether asking
            again can give another answer.
    """

    kind: Literal["llm_batch_assets.manifest"] = "llm_batch_assets.manifest"
    version: Literal[1] = 1
    job_key: str
    parent_job_key: str | None
    input_manifest_hash: str
    deployment: str
    tenant_id: str
    workload: str
    dataset: str
    revision: int
    attempt: int
    submitter: str
    cost_center: str | None
    created_at: AwareDatetime
    provider: ProviderName
    model: str
    endpoint: str
    body: Literal["native"] | None
    cache: str | None
    config_digest: str
    prompt_version: str
    prompt_digest: str
    system_prompt: str | None
    system_prompt_digest: str
    tools: list[dict[str, Any]] | None
    tools_digest: str
    generation: dict[str, Any]
    generation_digest: str
    temperature: float | None
    seed: int | None
    output: Output
    output_digest: str
    gate: Gate | None
    retry: Retry
    publish: Publish
    limits: Limits
    admission: Admission
    canary: Canary | None
    reuse: Literal["never", "dataset", "workload"]
    retention: Retention
    allow_untested: bool
    expected_record_count: int
    preflight_rejected: int
    carried_records: int = 0
    carried_digest: str | None = None
    batch_minimum: int = 1
    shards: tuple[ShardSpec, ...] = Field(strict=False)
    records_digest: str
    rows_digest: str

    @property
    def deterministic(self) -> bool:
        """Temperature 0 or a fixed seed: the same question gets the same answer."""
        return self.temperature == 0 or self.seed is not None

    def shard_key(self, ordinal: int) -> str:
        """``<dataset>/r<revision>/a<attempt>/p<5 digits>``."""
        return identity.shard_key(self.dataset, self.revision, self.attempt, ordinal)

    def to_bytes(self) -> bytes:
        """The JSON object as stored."""
        return self.model_dump_json(by_alias=True, indent=1).encode() + b"\n"


def workload_fields(workload: Workload) -> dict[str, Any]:
    """The fields of a manifest that its workload gives."""
    generation: Mapping[str, Any] = workload.generation
    config = generation.get("generationConfig", generation)
    temperature = config.get("temperature") if isinstance(config, Mapping) else None
    seed = config.get("seed") if isinstance(config, Mapping) else None
    tools = workload.tools_json()
    return {
        "tenant_id": workload.tenant_id,
        "workload": workload.name,
        "cost_center": workload.cost_center,
        "provider": workload.provider,
        "model": workload.model,
        "endpoint": workload.endpoint,
        "body": workload.body,
        "cache": workload.cache,
        "config_digest": workload.config_digest,
        "prompt_version": workload.prompt.version,
        "prompt_digest": workload.prompt_digest,
        "system_prompt": workload.prompt.system,
        "system_prompt_digest": identity.digest([workload.prompt.system]),
        "tools": tools,
        "tools_digest": identity.digest([tools]),
        "generation": workload.generation,
        "generation_digest": identity.generation_config_hash(workload.generation),
        "temperature": None if isinstance(temperature, bool) else temperature,
        "seed": None if isinstance(seed, bool) else seed,
        "output": workload.output,
        "output_digest": workload.output_digest,
        "gate": workload.gate,
        "retry": workload.retry,
        "publish": workload.publish,
        "limits": workload.limits,
        "admission": workload.admission,
        "canary": workload.canary,
        "reuse": workload.reuse,
        "retention": workload.retention,
        "allow_untested": workload.allow_untested,
    }


def parse_manifest(data: bytes, name: str) -> Manifest:
    """A manifest from its stored bytes.

    Raises:
        ArtifactError: the bytes are no manifest of a version that we know.
    """
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{name} is no manifest we can read: {where}: {first['msg']}."
        ) from None


def load_manifest(store: ArtifactStore, digest: str) -> Manifest:
    """The manifest with this digest.

    Raises:
        ArtifactError: it is absent, damaged, or of a version that we do not know.
    """
    return parse_manifest(store.get(digest), f"Object {digest}")
