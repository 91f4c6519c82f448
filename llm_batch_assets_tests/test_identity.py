"""Identity: golden values that can never drift, and the properties behind them."""

import base64
import hashlib
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from llm_batch_assets import identity
from llm_batch_assets.errors import InputError

CONFIG = {
    "provider": "openai",
    "model": "gpt-5-mini-2025-08-07",
    "endpoint": "/v1/responses",
    "generation": {"max_output_tokens": 200},
    "tools": None,
    "system": "Summarise.",
    "output_schema": {"type": "object"},
}
RECORD = {
    "tenant_id": "docs",
    "workload": "docstring_summaries",
    "business_key": "abc.ABC",
    "source_version": "3.11.9",
    "prompt_version": "v3",
    "salt": None,
}
JOB = {
    "tenant_id": "docs",
    "dataset": "2026-07-28",
    "model": "gpt-5-mini-2025-08-07",
    "prompt_version": "v3",
}


def sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def test_golden_values() -> None:
    config = identity.config_digest(**CONFIG)
    assert config == sha(
        b'["openai","gpt-5-mini-2025-08-07","/v1/responses",{"max_output_tokens":200},null,'
        b'"Summarise.",{"type":"object"}]'
    )
    assert config == "6bb262387feb20a7d121e8f1c86e4a7901caa55cc9679722ecdef4c258fe7b98"
    rid = identity.record_id(config_digest=config, **RECORD)
    assert rid == sha(
        f'["docs","docstring_summaries","abc.ABC","3.11.9","v3","{config}",null]'.encode()
    )
    assert rid == "1119d3b50f31b3587ea406a93ed64942a9c3f40697e3ce5ed43fab0ad5e28cdf"
    body = identity.request_digest(b'{"model":"m"}')
    assert body == "548f58d1c36c715b44f0863472074a97c448d5b8d18164b92adf55592b127f86"
    assert identity.rejected_digest("lone_surrogate", b"\xff\x00") == sha(
        b'["lone_surrogate","_wA"]'
    )
    generation = identity.generation_config_hash({"max_output_tokens": 200})
    assert generation == sha(b'[{"max_output_tokens":200}]')
    records = identity.records_digest([(rid, body)])
    assert records == sha(f'[["{rid}","{body}"]]'.encode())
    manifest = identity.input_manifest_hash(
        deployment="dev",
        workload="docstring_summaries",
        dataset="2026-07-28",
        revision=1,
        attempt=1,
        parent_job_key=None,
        records_digest=records,
    )
    assert manifest == sha(
        f'[1,"dev","docstring_summaries","2026-07-28",1,1,null,"{records}"]'.encode()
    )
    job = identity.job_key(input_manifest_hash=manifest, generation_config_hash=generation, **JOB)
    assert job == "sha256:83a7e8aa7af48200a0104232a22570b6860cdf39a96dd6413546f6d509cb7dd1"
    assert identity.submission_key(job, 7, 2) == sha(f'["{job}",7,2]'.encode())
    assert (
        identity.submission_key(job, 7, 2)
        == "8133c30112803cc940a906d8702596cea5b07ddebb03065f647da5eaf031e8aa"
    )
    tag = identity.wire_tag(job, 7)
    assert tag == "62hzsdlexpresomg"
    wire = identity.wire_id(tag, rid)
    assert wire == "62hzsdlexpresomg-ERnTtQ8xs1h-pAapPtZJQqnD9AaX485e1D-rCtXijN8"
    assert len(wire) == 60
    assert identity.parse_wire_id(wire) == (tag, rid)
    assert identity.shard_key("2026-07-28", 1, 2, 3) == "2026-07-28/r1/a2/p00003"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("007", "007"),
        (" É ", " É "),
        ("", ""),
        (7, "7"),
        (-(10**30), "-1" + "0" * 30),
        (np.int64(5), "5"),
        (True, "true"),
        (np.bool_(False), "false"),
        (date(2026, 7, 28), "2026-07-28"),
        (datetime(2026, 7, 28, 12, tzinfo=UTC), "2026-07-28T12:00:00.000000Z"),
        (datetime.fromisoformat("2026-07-28T12:00:00.000005"), "2026-07-28T12:00:00.000005Z"),
        (
            datetime(2026, 7, 28, 1, tzinfo=timezone(timedelta(hours=2))),
            "2026-07-27T23:00:00.000000Z",
        ),
        (pd.Timestamp("2026-07-28", tz="UTC"), "2026-07-28T00:00:00.000000Z"),
        (Decimal("1.500"), "1.5"),
        (Decimal("1E+3"), "1000"),
        (Decimal("-0.00"), "0"),
        (Decimal("12345678901234567890123456789.10"), "12345678901234567890123456789.1"),
        (
            UUID("AAAAAAAA-BBBB-CCCC-DDDD-EEEEEEEEEEEE"),
            "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
        ),
    ],
)
def test_key_text(value: object, text: str) -> None:
    assert identity.key_text(value, "k") == text


def test_key_text_of_an_integer_of_any_size() -> None:
    assert identity.key_text(10**5000, "k") == "1" + "0" * 5000


@pytest.mark.parametrize(
    "value",
    [
        None,
        1.0,
        float("nan"),
        np.float64(1),
        pd.NaT,
        pd.NA,
        "\ud83d",
        [1],
        {"a": 1},
        b"x",
        timedelta(1),
        Decimal("NaN"),
        pd.Timestamp("2026-07-28T00:00:00.000000001"),
    ],
)
def test_key_text_refuses_and_names_the_column(value: object) -> None:
    with pytest.raises(InputError, match="'the_column'"):
        identity.key_text(value, "the_column")


def test_composite_key_is_a_nested_array() -> None:
    assert identity.composite_key(["x"], ["a"]) == "x"
    key = identity.composite_key(["x", 7], ["a", "b"])
    assert key == ["x", "7"]
    config = identity.config_digest(**CONFIG)
    nested = identity.record_id(config_digest=config, **{**RECORD, "business_key": key})
    flat = identity.record_id(config_digest=config, **{**RECORD, "business_key": '["x","7"]'})
    assert nested != flat


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-identity.SAFE_INTEGER, identity.SAFE_INTEGER),
    st.text(st.characters(exclude_categories=["Cs"])),
)
plain = st.recursive(scalars, lambda child: st.lists(child, max_size=4), max_leaves=20)


@given(st.lists(plain))
def test_fast_canonical_json_is_rfc8785(value: list[object]) -> None:
    assert identity.canonical_json(value) == rfc8785.dumps(value)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 0x10FFFF))
def test_every_character_is_written_as_rfc8785_does(text: str, point: int) -> None:
    character = "" if 0xD800 <= point <= 0xDFFF else chr(point)
    value = [text + character]
    assert identity.canonical_json(value) == rfc8785.dumps(value)


def test_objects_are_ordered_by_utf16() -> None:
    assert identity.canonical_json({"\ufb33": 1, "\U0001f600": 2.0, "a": 1e21}) == (
        '{"a":1e+21,"\U0001f600":2,"\ufb33":1}'.encode()
    )


@pytest.mark.parametrize("value", [[2**53], [float("nan")], ["\udc00"], {1: 2}, [object()]])
def test_canonical_json_refuses_what_it_cannot_say(value: object) -> None:
    with pytest.raises(InputError):
        identity.canonical_json(value)


keys = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=3),
)


@given(keys, st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]))))
def test_many_record_ids_equal_the_slow_ones(key: str | list[str], version: str | None) -> None:
    fast = identity.RecordIds(
        tenant_id="täst", workload="w", prompt_version="v1", config_digest="c" * 64, salt="s"
    )
    assert fast(key, version).hex() == identity.record_id(
        tenant_id="täst",
        workload="w",
        business_key=key,
        source_version=version,
        prompt_version="v1",
        config_digest="c" * 64,
        salt="s",
    )


@given(st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.binary(max_size=1))))
def test_records_digest_ignores_order_and_equals_the_definition(
    raw: list[tuple[bytes, bytes]],
) -> None:
    pairs = [(rid.hex(), identity.request_digest(body)) for rid, body in raw]
    assert identity.records_digest(pairs) == identity.digest(sorted([list(p) for p in pairs]))
    assert identity.records_digest(reversed(pairs)) == identity.records_digest(pairs)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 99_999))
def test_wire_ids_go_there_and_back(rid: bytes, ordinal: int) -> None:
    tag = identity.wire_tag("sha256:" + "0" * 64, ordinal)
    wire = identity.wire_id(tag, rid.hex())
    assert wire == identity.wire_id_raw(tag, rid)
    assert identity.parse_wire_id(wire) == (tag, rid.hex())


def test_what_is_no_wire_id() -> None:
    rid = base64.urlsafe_b64encode(bytes(32)).decode()[:43]
    good = f"{'a' * 16}-{rid}"
    assert identity.parse_wire_id(good) is not None
    for text in ("", "a", good + "\n", good[:-1], good[:-1] + "B", good.upper(), "x" + good):
        assert identity.parse_wire_id(text) is None
