"""Key text, canonical JSON, digests, keys and wire ids: the names of everything we do.

Digests are sha256 over canonical JSON (RFC 8785) of an array of the parts, never over a
concatenation. The golden values in ``test_identity.py`` pin every function here: a change of one
byte would orphan every record that was ever sent.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from numbers import Integral
from typing import Any
from uuid import UUID

import orjson

from llm_batch_assets.errors import InputError

MANIFEST_SCHEMA_VERSION = 1
"""First part of ``input_manifest_hash``; changes only with the meaning of a manifest."""

SAFE_INTEGER = 2**53 - 1
"""Largest integer that canonical JSON can carry (RFC 8785 numbers are IEEE 754 doubles)."""

_WIRE_ID = re.compile(r"([a-z2-7]{16})-([A-Za-z0-9_-]{43})", re.ASCII)
_NULL_TYPES = frozenset({"NoneType", "NaTType", "NAType"})


def key_text(value: object, column: str) -> str:
    """The one text of a key value, whatever table it came from.

    Integers in decimal of any size, booleans ``true``/``false``, dates ISO, timestamps in UTC with
    microseconds and ``Z`` (one without a zone is taken as UTC), decimals normalised, UUIDs lower
    case, strings exactly as they are.

    Args:
        value: a scalar from a table's key column.
        column: the column's name, for the message.

    Raises:
        InputError: for nulls, floats, lone surrogates, nested and other values.
    """
    if type(value) is str:
        return _checked_text(value, column)
    if type(value).__name__ in _NULL_TYPES:
        raise InputError(f"Column {column!r}: a key must not be null.")
    if isinstance(value, str):
        return _checked_text(str.__str__(value), column)
    item = getattr(value, "item", None)
    if item is not None and not isinstance(value, datetime):  # a NumPy scalar
        value = item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return _integer_text(int(value))
    if isinstance(value, float):
        raise InputError(
            f"Column {column!r}: a key must not be a float ({value!r}); cast it to text or integer."
        )
    if isinstance(value, Decimal):
        return _decimal_text(value, column)
    if isinstance(value, datetime):
        return _timestamp_text(value, column)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    kind = type(value).__name__
    raise InputError(f"Column {column!r}: a value of type {kind} cannot be a key; cast it to text.")


def composite_key(values: Sequence[object], columns: Sequence[str]) -> str | list[str]:
    """Key text of one record: a string for one column, a list of strings for several."""
    if len(columns) == 1:
        return key_text(values[0], columns[0])
    return [key_text(value, column) for value, column in zip(values, columns, strict=True)]


def _checked_text(value: str, column: str) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(
                f"Column {column!r}: the key {value!a} holds a lone surrogate."
            ) from None
    return value


def _integer_text(value: int) -> str:
    # ``str`` refuses more than 4,300 digits (a guard of CPython); Decimal has no such limit.
    return str(value) if value.bit_length() < 14_000 else format(Decimal(value), "f")


def _decimal_text(value: Decimal, column: str) -> str:
    if not value.is_finite():
        raise InputError(f"Column {column!r}: a key must be a finite number, not {value}.")
    # Not ``normalize()``: it rounds to the context's precision.
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _timestamp_text(value: datetime, column: str) -> str:
    if getattr(value, "nanosecond", 0):  # pandas.Timestamp
        raise InputError(f"Column {column!r}: {value} is finer than microseconds; cast it to text.")
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    # ``strftime`` does not pad the year everywhere; ``isoformat`` does.
    return moment.replace(tzinfo=None, fold=0).isoformat(timespec="microseconds") + "Z"


def canonical_json(value: Any) -> bytes:
    """Canonical JSON (RFC 8785): one byte string for one value.

    Raises:
        InputError: for what it cannot express: integers from 2**53 on, NaN and infinities, lone
            surrogates, keys that are no strings, other types.
    """
    if _is_plain(value):
        return orjson.dumps(value)
    import rfc8785  # off the hot path: 108 µs for a request body

    try:
        return bytes(rfc8785.dumps(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise InputError(f"Not expressible in canonical JSON: {error}.") from None


def _is_plain(value: object) -> bool:
    """True for arrays of strings, small integers, booleans and nulls.

    For these ``orjson`` writes what RFC 8785 prescribes (a property test proves it); objects need
    key order by UTF-16 and floats need ECMAScript's digits.
    """
    kind = type(value)
    if kind is str:
        return not _has_surrogate(value)  # type: ignore[arg-type]
    if kind is int:
        return -SAFE_INTEGER <= value <= SAFE_INTEGER  # type: ignore[operator]
    if value is None or kind is bool:
        return True
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    return False


def _has_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def digest(parts: Sequence[Any]) -> str:
    """Sha256 (hex) of the canonical JSON of an array of parts."""
    return hashlib.sha256(canonical_json(list(parts))).hexdigest()


def config_digest(
    *,
    provider: str,
    model: str,
    endpoint: str | None,
    generation: Mapping[str, Any],
    tools: Sequence[Any] | None,
    system: str | None,
    output_schema: Mapping[str, Any] | None,
) -> str:
    """Digest (hex) of what a workload asks of a model, as it declares it."""
    return digest(
        [
            provider,
            model,
            endpoint,
            dict(generation),
            None if tools is None else list(tools),
            system,
            None if output_schema is None else dict(output_schema),
        ]
    )


def generation_config_hash(generation: Mapping[str, Any]) -> str:
    """Digest (hex) of the generation config alone."""
    return digest([dict(generation)])


def record_id(
    *,
    tenant_id: str,
    workload: str,
    business_key: str | Sequence[str],
    source_version: str | None,
    prompt_version: str,
    config_digest: str,
    salt: str | None = None,
) -> str:
    """The stable name (hex) of one question: fixed at attempt 1."""
    key = business_key if isinstance(business_key, str) else list(business_key)
    return digest([tenant_id, workload, key, source_version, prompt_version, config_digest, salt])


class RecordIds:
    """``record_id`` for many records of one workload: the constant parts are encoded once."""

    __slots__ = ("_head", "_tail")

    def __init__(
        self,
        *,
        tenant_id: str,
        workload: str,
        prompt_version: str,
        config_digest: str,
        salt: str | None,
    ) -> None:
        self._head = hashlib.sha256(canonical_json([tenant_id, workload])[:-1] + b",")
        self._tail = b"," + canonical_json([prompt_version, config_digest, salt])[1:]

    def __call__(self, business_key: str | list[str], source_version: str | None) -> bytes:
        """The record id as 32 raw bytes; keys must have passed ``key_text``."""
        sink = self._head.copy()
        sink.update(orjson.dumps(business_key) + b"," + orjson.dumps(source_version) + self._tail)
        return sink.digest()


def request_digest(body: bytes) -> str:
    """Sha256 (hex) of a request body's bytes as sent."""
    return hashlib.sha256(body).hexdigest()


def rejected_digest(rule: str, raw: bytes) -> str:
    """Stands for ``request_digest`` (hex) where preflight keeps a record back.

    The raw bytes may be no text at all, so they enter the array as base64url without padding.
    """
    return digest([rule, base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")])


def records_digest(pairs: Iterable[tuple[str, str]]) -> str:
    """Digest (hex) of a list of (record_id, request_digest), in whatever order it comes.

    Equal to ``digest(sorted(pairs))``.
    """
    return sorted_records_digest(sorted(pairs))


def sorted_records_digest(pairs: Iterable[tuple[str, str]]) -> str:
    """``records_digest`` of pairs that come in ascending order of record id, streaming."""
    sink = hashlib.sha256(b"[")
    comma = ""
    for rid, body in pairs:
        sink.update(f'{comma}["{rid}","{body}"]'.encode("ascii"))
        comma = ","
    sink.update(b"]")
    return sink.hexdigest()


def input_manifest_hash(
    *,
    deployment: str,
    workload: str,
    dataset: str,
    revision: int,
    attempt: int,
    parent_job_key: str | None,
    records_digest: str,
) -> str:
    """Digest (hex) of what a job asks. No time, submitter, layout or input order is in it."""
    return digest(
        [
            MANIFEST_SCHEMA_VERSION,
            deployment,
            workload,
            dataset,
            revision,
            attempt,
            parent_job_key,
            records_digest,
        ]
    )


def job_key(
    *,
    tenant_id: str,
    dataset: str,
    input_manifest_hash: str,
    model: str,
    prompt_version: str,
    generation_config_hash: str,
) -> str:
    """The name of a job, ``sha256:<hex>``."""
    return "sha256:" + digest(
        [tenant_id, dataset, input_manifest_hash, model, prompt_version, generation_config_hash]
    )


def submission_key(job_key: str, ordinal: int, epoch: int) -> str:
    """The name (hex) of one create of one shard."""
    return digest([job_key, ordinal, epoch])


def wire_tag(job_key: str, ordinal: int) -> str:
    """The 16 characters that every wire id of one shard starts with.

    The epoch is not in it, so that a shard's request file never changes.
    """
    raw = bytes.fromhex(digest([job_key, ordinal]))
    return base64.b32encode(raw).decode("ascii").lower()[:16]


def wire_id(tag: str, record_id: str) -> str:
    """The id a provider sees: ``<tag>-<rid>``, 60 characters of ``[A-Za-z0-9_-]``."""
    return f"{tag}-{_rid(bytes.fromhex(record_id))}"


def wire_id_raw(tag: str, record_id: bytes) -> str:
    """``wire_id`` for a record id given as its 32 bytes."""
    return f"{tag}-{_rid(record_id)}"


def _rid(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw)[:43].decode("ascii")


def parse_wire_id(text: str) -> tuple[str, str] | None:
    """(tag, record_id hex) of a wire id, or None for anything that is not exactly one."""
    match = _WIRE_ID.fullmatch(text)
    if match is None:
        return None
    raw = base64.urlsafe_b64decode(match[2] + "=")
    # 43 characters hold 258 bits: other spellings of the last one are no id of ours.
    return (match[1], raw.hex()) if _rid(raw) == match[2] else None


def shard_key(dataset: str, revision: int, attempt: int, ordinal: int) -> str:
    """``<dataset>/r<revision>/a<attempt>/p<5 digits>``."""
    return f"{dataset}/r{revision}/a{attempt}/p{ordinal:05d}"
