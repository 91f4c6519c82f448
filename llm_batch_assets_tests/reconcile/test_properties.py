"""Random manifests and random damage: the account agrees with an independent reference."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from llm_batch_assets.reconcile.accounting import account
from llm_batch_assets.reconcile.digests import rows_digest, set_digest
from llm_batch_assets.reconcile.lines import unreadable_file
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets_tests.reconcile.mangle import SCHEMA, files
from llm_batch_assets_tests.reconcile.oracle import SETS, reference

RULES = Rules(provider="openai", endpoint="/v1/responses", answer="json", schema=SCHEMA)
SEEDS = st.integers(0, 2**48)


def made(seed: int) -> tuple[list[str], list[bytes]]:
    """Ids and two damaged files that are still UTF-8 files as wholes."""
    rng = random.Random(seed)
    ids = [f"r-{at}" for at in range(rng.randrange(1, 16))]
    found = [b"" if unreadable_file(data) else data for data in files(rng, ids)]
    return ids, found


def reconciled(ids: list[str], data: list[bytes]) -> Account:
    raws = [RawFile.of(f"f{at}", "results", one) for at, one in enumerate(data)]
    return account(Expected(ids), RULES, raws)


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_sets_answers_and_unreadable_lines_agree_with_the_reference(seed: int) -> None:
    ids, data = made(seed)
    found = reconciled(ids, data)
    sets, answers, unreadable = reference(set(ids), data, SCHEMA)
    foreign = {name.encode("utf-8", "backslashreplace").decode() for name in sets["unknown"]}
    assert {name: set(members) for name, members in found.sets().items()} == sets | {
        "unknown": foreign
    }
    texts = zip(ids, found.answers.to_pylist(), strict=True)
    assert {wire_id: text for wire_id, text in texts if text is not None} == answers
    assert sum(a.kind == "unreadable" for a in found.anomalies) == unreadable


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_the_sets_are_disjoint_and_cover_the_manifest(seed: int) -> None:
    ids, data = made(seed)
    found = reconciled(ids, data)
    sets = found.sets()
    inside = [wire_id for name in (*SETS, "duplicate") for wire_id in sets[name]]
    assert sorted(inside) == sorted(ids)
    assert not set(sets["unknown"]) & set(ids)
    open_sets = sets["missing"] or sets["unknown"] or sets["duplicate"]
    unreadable = any(a.kind == "unreadable" for a in found.anomalies)
    assert found.closed == (not open_sets and not unreadable)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_nothing_is_accepted_that_is_not_in_the_raw_bytes(seed: int) -> None:
    """Every row of evidence points at bytes that hold its id and, decoded, its answer."""
    import json

    ids, data = made(seed)
    found = reconciled(ids, data)
    by_digest = {raw.digest: bytes(raw.data) for raw in found.raws}
    for row, text in zip(found.table.to_pylist(), found.answers.to_pylist(), strict=True):
        if row["file"] is None:
            assert text is None and row["cls"] in ("missing", "duplicate")
            continue
        source = by_digest[row["file"]][row["offset"] : row["offset"] + row["length"]]
        lines = by_digest[row["file"]].split(b"\n")
        assert lines[row["line"] - 1].rstrip(b"\r").removeprefix(b"\xef\xbb\xbf") == source
        parsed = json.loads(source)
        assert parsed["custom_id"] == row["wire_id"]
        if text is not None:
            parts = parsed["response"]["body"]["output"][0]["content"]
            assert "".join(part["text"] for part in parts) == text
    for anomaly in found.anomalies:
        source = by_digest[anomaly.file]
        assert anomaly.offset + anomaly.length <= len(source)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_twice_and_in_another_order_of_files_gives_the_same_digests(seed: int) -> None:
    ids, data = made(seed)
    once, again = reconciled(ids, data), reconciled(ids, data)
    assert rows_digest(once.table) == rows_digest(again.table)
    raws = [RawFile.of(f"f{at}", "results", one) for at, one in enumerate(data)]
    turned = account(Expected(ids), RULES, raws[::-1])
    assert rows_digest(once.table) == rows_digest(turned.table)
    assert once.anomalies == turned.anomalies


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.integers(1, 5))
def test_in_pieces_gives_the_same_sets(seed: int, pieces: int) -> None:
    """Shards one by one, and one file cut at line ends into several, agree with the whole."""
    ids, data = made(seed)
    whole = reconciled(ids, data)
    merged: dict[str, set[str]] = {name: set() for name in whole.sets()}
    for at in range(pieces):
        part = ids[at::pieces]
        if part:
            for name, members in reconciled(part, data).sets().items():
                merged[name] |= set(members)
    merged["unknown"] -= set(ids)
    wanted = {name: set_digest(members) for name, members in whole.sets().items()}
    assert {name: set_digest(members) for name, members in merged.items()} == wanted
    cut = [b"\n".join(one.split(b"\n")[at::pieces]) for one in data for at in range(pieces)]
    if not any(unreadable_file(piece) for piece in cut) and b"\xef\xbb\xbf" not in b"".join(data):
        assert {k: set(v) for k, v in reconciled(ids, cut).sets().items()} == {
            k: set(v) for k, v in whole.sets().items()
        }
