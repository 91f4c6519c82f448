"""Judging a request file before it is uploaded: what the provider would find minutes later."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from llm_batch_assets.manifest.rules import key_marks, loads_slowly, text_rule, value_rule
from llm_batch_assets.types import ProviderName
from llm_batch_assets.wire.ask import request_module
from llm_batch_assets.wire.labels import (
    Fault,
    client_token_fault,
    job_name_fault,
    metadata_faults,
)
from llm_batch_assets.wire.lines import BODY_FAULT, LINE_RULES, Facts

_BOM = b"\xef\xbb\xbf"
_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SHORT = 64
_UNCLEAN = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line (1-based) that must not be sent, its id as far as it has one, and why."""

    line: int
    id: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be sent and what not.

    Attributes:
        accept: ids of good lines, in order.
        reject: bad lines, in order; one reason each, the first that applies.
        reject_job: faults of the whole file or its labels: ``key`` (or None) and ``reason``.
        collisions: groups of different ids that would become one if they were cut to 64
            characters or cleaned of characters outside ``[A-Za-z0-9_-]``: map them, never shorten.
    """

    accept: tuple[str, ...]
    reject: tuple[RejectedLine, ...]
    reject_job: tuple[Fault, ...]
    collisions: tuple[tuple[str, ...], ...]

    @property
    def ok(self) -> bool:
        """Nothing stands against sending the file as it is."""
        return not self.reject and not self.reject_job


@dataclass(slots=True)
class _Line:
    number: int
    id: Any = None
    reason: str | None = None
    facts: Facts | None = None
    late: str | None = None
    """A fault that counts only after those that compare lines."""
    size: int = 0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of the batch beside its file; limits None means the provider's own."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    job_name: str | None = None
    client_token: str | None = None
    model: str | None = None
    endpoint: str | None = None
    minimum: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    max_inputs: int | None = None


def judge(
    provider: ProviderName, raw_lines: Iterable[bytes], job: JobFacts | None = None
) -> Verdict:
    """Judge the lines of a request file.

    Args:
        provider: whose batch it is for.
        raw_lines: the file split at newline bytes.
        job: what else is known of the batch.
    """
    job = job or JobFacts()
    faults: list[Fault] = []
    lines: list[_Line] = []
    size = 0
    for number, raw in enumerate(raw_lines, start=1):
        size += len(raw)
        if number == 1 and raw.startswith(_BOM):
            faults.append({"key": None, "reason": "byte_order_mark"})
            raw = raw[len(_BOM) :]
        if raw.strip():
            lines.append(_read(provider, number, raw))
    _compare(lines, job)
    faults += _job_faults(provider, lines, size, job)
    good = [line for line in lines if line.reason is None]
    return Verdict(
        accept=tuple(line.id for line in good),
        reject=tuple(
            RejectedLine(line.number, line.id, line.reason)
            for line in lines
            if line.reason is not None
        ),
        reject_job=tuple(faults),
        collisions=_collisions(lines),
    )


def _read(provider: ProviderName, number: int, raw: bytes) -> _Line:
    rules = LINE_RULES[provider]
    found = _Line(number, size=len(raw))
    value, found.reason = _parse(raw)
    if found.reason is not None:
        return found
    if not isinstance(value, dict):
        found.reason = "not_object"
        return found
    found.id = value.get(rules.id_field)
    # A surrogate says more than any other fault of an id.
    broken = text_rule(found.id) if isinstance(found.id, str) else None
    found.reason = broken if broken == "lone_surrogate" else rules.id_fault(value)
    found.reason = found.reason or rules.fields(value)
    if found.reason is None:
        found.facts = rules.facts(value)
        late = BODY_FAULT.get(provider)
        found.late = value_rule(value) or (late(value) if late else None)
    return found


def _parse(raw: bytes) -> tuple[Any, str | None]:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            return loads_slowly(raw), None
        except UnicodeDecodeError:
            return None, "invalid_utf8"
        except (ValueError, RecursionError):
            body = raw.rstrip(b"\r\n")
            return None, "control_character" if _CONTROL_BYTES.search(body) else "invalid_json"
    if isinstance(value, dict) and _keys(value) != key_marks(raw):
        try:
            loads_slowly(raw)
        except (ValueError, RecursionError):
            return None, "repeated_key"
    return value, None


def _keys(value: Mapping[str, Any]) -> int:
    """Keys of two levels: enough to take the fast way for flat bodies only."""
    return len(value) + sum(len(child) for child in value.values() if isinstance(child, dict))


def _compare(lines: list[_Line], job: JobFacts) -> None:
    """Faults that a line has only beside the others."""
    ids = Counter(line.id for line in lines if isinstance(line.id, str) and line.id)
    for line in lines:
        if line.reason is None and ids[line.id] > 1:
            line.reason = "duplicate_custom_id"
    _same(lines, "url", "mixed_url", job.endpoint)
    _same(lines, "kind", "mixed_kind", None)
    _same(lines, "model", "mixed_model", job.model)
    for line in lines:
        line.reason = line.reason or line.late


def _same(lines: list[_Line], name: str, reason: str, wanted: str | None) -> None:
    """Reject the lines that differ from what was asked for, or from what most lines say."""
    values = [
        getattr(line.facts, name)
        for line in lines
        if line.facts is not None and getattr(line.facts, name) is not None
    ]
    if not values:
        return
    # ``most_common`` keeps the order of first sight among equals.
    usual = wanted if wanted is not None else Counter(values).most_common(1)[0][0]
    for line in lines:
        if line.reason is None and line.facts is not None:
            value = getattr(line.facts, name)
            if value is not None and value != usual:
                line.reason = reason


def _job_faults(
    provider: ProviderName, lines: list[_Line], size: int, job: JobFacts
) -> list[Fault]:
    limits = request_module(provider).LIMITS
    most = limits.records if job.max_records is None else job.max_records
    room = limits.bytes if job.max_bytes is None else job.max_bytes
    most_inputs = limits.inputs if job.max_inputs is None else job.max_inputs
    least = limits.minimum if job.minimum is None else job.minimum
    count = len(lines)
    inputs = sum(line.facts.inputs for line in lines if line.facts is not None)
    found: list[str] = []
    if count == 0:
        found.append("empty_file")
    elif count < least:
        found.append(f"under_{least}_records")
    if most is not None and count > most:
        found.append(f"over_{most}_records")
    if size + limits.overhead > room:
        found.append(f"over_{room}_bytes")
    if most_inputs is not None and inputs > most_inputs:
        found.append(f"over_{most_inputs}_embedding_inputs")
    if job.job_name is not None:
        found += [fault for fault in [job_name_fault(job.job_name)] if fault]
    if job.client_token is not None:
        found += [fault for fault in [client_token_fault(job.client_token)] if fault]
    whole: list[Fault] = [{"key": None, "reason": reason} for reason in found]
    return whole + metadata_faults(provider, job.metadata)


def _collisions(lines: list[_Line]) -> tuple[tuple[str, ...], ...]:
    ids = dict.fromkeys(line.id for line in lines if isinstance(line.id, str) and line.id)
    cut: dict[str, list[str]] = defaultdict(list)
    cleaned: dict[str, list[str]] = defaultdict(list)
    for text in ids:
        cut[text[:_SHORT]].append(text)
        cleaned[_UNCLEAN.sub("_", text)].append(text)
    groups = [tuple(group) for group in (*cut.values(), *cleaned.values()) if len(group) > 1]
    return tuple(dict.fromkeys(groups))
