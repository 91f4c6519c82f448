"""Verify: whatever is changed in a copied folder is named by file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from llm_batch_assets.cli.verify import command
from llm_batch_assets.errors import InputError
from llm_batch_assets.identity import canonical_json
from llm_batch_assets.reconcile import frozen, revision
from llm_batch_assets.reconcile import settle as settling
from llm_batch_assets.reconcile.book import flags
from llm_batch_assets.reconcile.digests import rows_digest
from llm_batch_assets.reconcile.revision import RevisionEvidence, load_revision
from llm_batch_assets.reconcile.settle import Facts
from llm_batch_assets.reconcile.verify import Report, verify
from llm_batch_assets.reconcile.verify.documents import KINDS
from llm_batch_assets.reconcile.verify.folder import Folder
from llm_batch_assets_tests.reconcile.folder_for_tests import (
    Builder,
    all_good,
    closed_folder,
    gate,
    object_path,
    put,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> tuple[Path, RevisionEvidence]:
    made, evidence = closed_folder(tmp_path_factory.mktemp("store"))
    assert evidence.closed
    return made.root, evidence


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy that the test may spoil; the ledger never was in it."""
    return Path(shutil.copytree(original[0], tmp_path / "copy"))


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def documents(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in files(root):
        if path.read_bytes()[:1] == b"{" and b"llm_batch_assets." in path.read_bytes():
            document = json.loads(path.read_bytes())
            if document.get("kind") in KINDS:
                yield path, document


def reseal(root: Path, old: str, new: str) -> None:
    """Name the new object wherever the old one was named, and so on upwards: a careful forger."""
    while hit := next((p for p, _ in documents(root) if old.encode() in p.read_bytes()), None):
        text = hit.read_bytes()
        hit.unlink()
        reseal(root, hit.name, put(root, text.replace(old.encode(), new.encode())))


def faults_of(report: Report, root: Path, name: str) -> list[str]:
    relative = object_path(root, name).relative_to(root).as_posix()
    return [finding.what for finding in report.faults if finding.file == relative]


def test_a_sound_folder_has_no_fault_and_no_note(original) -> None:
    root, evidence = original
    before = {path: path.read_bytes() for path in files(root)}
    report = verify(root, closure=evidence.closure_digest)
    assert (report.faults, report.notes) == ([], [])
    (settled,) = report.revisions
    assert settled["closed"] and settled["states"] == evidence.states
    assert report.counts["shards"] == report.counts["shard_closures"] >= 4
    assert {path: path.read_bytes() for path in files(root)} == before


def test_one_flipped_byte_of_any_file_is_reported_with_its_name(folder) -> None:
    rng = random.Random(20260728)
    paths = files(folder)
    assert len(paths) > 25
    for path in paths:
        data = path.read_bytes()
        spoiled = bytearray(data)
        spoiled[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(spoiled))
        report = verify(folder)
        name = path.relative_to(folder).as_posix()
        assert name in {finding.file for finding in report.faults}, name
        path.write_bytes(data)
    assert verify(folder).ok


def test_any_flipped_bit_of_the_store_file_is_reported(folder) -> None:
    path = folder / "store.json"
    data = path.read_bytes()
    for bit in range(len(data) * 8):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(spoiled))
        report = Report()
        Folder(folder).scan(report)
        assert [finding.file for finding in report.faults] == ["store.json"], bit


def test_a_flipped_byte_under_a_new_name_is_reported_with_both_names(folder) -> None:
    for path in [p for p in files(folder) if p.name != "store.json"]:
        data = path.read_bytes()
        spoiled = bytearray(data)
        spoiled[len(data) // 2] ^= 1
        path.unlink()
        new = object_path(folder, put(folder, bytes(spoiled)))
        report = verify(folder)
        old_name, new_name = (p.relative_to(folder).as_posix() for p in (path, new))
        named = {finding.file for finding in report.faults}
        # Nothing in the folder names the last closure: its own content gives it away.
        assert old_name in named or b"llm_batch_assets.revision_closure" in data, old_name
        assert new_name in repr(report), new_name
        new.unlink()
        path.write_bytes(data)


@pytest.mark.parametrize("missing", range(31))
def test_an_object_that_is_missing_is_named(folder, original, missing: int) -> None:
    paths = [p for p in files(folder) if p.name != "store.json"]
    path = paths[missing % len(paths)]
    path.unlink()
    report = verify(folder, closure=original[1].closure_digest)
    assert path.name in " ".join(finding.file for finding in report.faults)


STATE_COLUMNS = {"cls", "state", "answer", "shard"}


def swaps(root: Path) -> Iterator[tuple[Path, str, pa.Table, pa.Table]]:
    """Every table with two rows' states exchanged."""
    for path in files(root):
        if path.read_bytes()[:4] != b"PAR1":
            continue
        table = pq.read_table(path)
        for column in sorted(STATE_COLUMNS & set(table.schema.names)):
            values = table[column].to_pylist()
            other = next((n for n, v in enumerate(values) if v != values[0]), None)
            if other is None:
                continue
            values[0], values[other] = values[other], values[0]
            at = table.schema.get_field_index(column)
            field = table.schema.field(at)
            yield path, column, table, table.set_column(at, field, pa.array(values, field.type))


def test_two_swapped_states_under_a_new_name_are_reported(folder) -> None:
    seen = set()
    for path, column, _, swapped in list(swaps(folder)):
        data = path.read_bytes()
        path.unlink()
        sink = pa.BufferOutputStream()
        pq.write_table(swapped, sink)
        new = object_path(folder, put(folder, sink.getvalue().to_pybytes()))
        report = verify(folder)
        assert faults_of(report, folder, path.name), (path.name, column)
        new.unlink()
        path.write_bytes(data)
        seen.add(column)
    assert seen == STATE_COLUMNS


def test_two_swapped_states_under_forged_closures_are_reported(folder, tmp_path) -> None:
    """Every digest that leads to the table is forged as well, up to the revision's closure."""
    for number, (path, column, table, swapped) in enumerate(list(swaps(folder))):
        copy = Path(shutil.copytree(folder, tmp_path / f"forged{number}"))
        sink = pa.BufferOutputStream()
        pq.write_table(swapped, sink)
        new = put(copy, sink.getvalue().to_pybytes())
        object_path(copy, path.name).unlink()
        reseal(copy, path.name, new)
        reseal(copy, rows_digest(table), rows_digest(swapped))
        report = verify(copy)
        assert not [f for f in report.faults if "absent" in f.what], column
        assert faults_of(report, copy, new), (path.name, column, report.faults)
        shutil.rmtree(copy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forged_number_is_reported_with_the_document_that_says_it(folder, kind: str) -> None:
    path, document = next(pair for pair in documents(folder) if pair[1]["kind"] == kind)
    key = {KINDS[0]: "expected_record_count", KINDS[3]: "states"}.get(kind, "counts")
    if isinstance(document[key], dict):
        document[key]["retryable" if key == "counts" else "accepted"] += 1
    else:
        document[key] += 1
    path.unlink()
    forged = put(folder, canonical_json(document))
    reseal(folder, path.name, forged)
    assert any(what.startswith(key) for what in faults_of(verify(folder), folder, forged))


def test_what_was_made_under_other_rules_is_not_recomputed_unless_asked(
    tmp_path, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(frozen, "RULES_VERSION", "0.1")
        made, _ = closed_folder(tmp_path / "store")
    report = verify(made.root)
    assert report.ok
    assert sum("was made under rules 0.1" in note.what for note in report.notes) == 4
    assert "shards" not in report.counts
    asked = verify(made.root, rules="current")
    assert asked.ok and asked.counts["shards"] == 4


def test_settlement_rules_of_another_version_are_not_applied(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(revision, "SETTLE_VERSION", "0")
        made, _ = closed_folder(tmp_path / "store")
    report = verify(made.root)
    assert report.ok and "revisions" not in report.counts
    assert any("was settled under rules 0" in note.what for note in report.notes)
    asked = verify(made.root, rules="current")
    assert asked.ok and asked.counts["revisions"] == 1


def test_a_closure_of_version_1_stands_where_today_it_would_say_something_else(
    tmp_path, monkeypatch
) -> None:
    """Version 1 counted nothing that a provider dropped: it gave close_by as the reason here."""

    def dropped(wire_id: str, key: str, place: int) -> list[bytes]:
        return [] if key in ("k003", "k050") else all_good(wire_id, key, place)

    made = Builder(tmp_path / "store")
    late = Facts(close_by_passed=True)
    with monkeypatch.context() as patch:
        patch.setattr(revision, "SETTLE_VERSION", "1")
        patch.setattr(settling, "_may_be_paid", lambda book: flags(book.evidence["charged"]))
        for attempt in range(3):
            if attempt:
                made.again(made.settled().selection)
            for shard in made.frozen[-1].manifest.shards:
                made.collect(shard.ordinal, dropped, copies=2)
        _, evidence = made.settle(late)
    assert evidence.closed and evidence.states["human_review"] == 2
    before = {path.name: path.read_bytes() for path in files(made.root)}
    report = verify(made.root)
    assert report.ok and "revisions" not in report.counts
    assert any("was settled under rules 1" in note.what for note in report.notes)
    asked = verify(made.root, rules="current")
    assert any("reason" in fault.what for fault in asked.faults), asked.faults
    assert load_revision(made.store, evidence.closure_digest) == evidence
    assert {path.name: path.read_bytes() for path in files(made.root)} == before
    # The same records settled today say so under today's version.
    table, today = made.settle(late)
    assert today.closure_digest != evidence.closure_digest
    assert table.summary["reasons"]["human_review"] == {"exhausted": 2}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b'"whole":true', b'"whole":false', "does not say that it is whole"),
        (b'"announced_bytes":', b'"announced_bytes":1', "the transfer announced"),
        (b'"expected_bytes":null', b'"expected_bytes":5', "the provider counts"),
        (b'"received_bytes":', b'"received_bytes":2', "the transfer announced"),
    ],
)
def test_a_receipt_that_its_file_contradicts_is_reported(folder, old, new, what) -> None:
    path = next(p for p, d in documents(folder) if d["kind"] == KINDS[1] and d["raw_files"])
    text = path.read_bytes()
    path.unlink()
    forged = put(folder, text.replace(old, new))
    reseal(folder, path.name, forged)
    assert any(what in fault for fault in faults_of(verify(folder), folder, forged))


def test_a_file_that_came_compressed_is_longer_than_its_transfer(tmp_path) -> None:
    made = Builder(tmp_path / "store")
    made.collect(0, all_good, receipt={"content_encoding": "gzip", "received_bytes": 7})
    made.settle()
    assert verify(made.root).ok


def test_the_gate_runs_only_when_the_reader_gives_it(tmp_path) -> None:
    made, _ = closed_folder(tmp_path / "store", with_gate=True)
    report = verify(made.root)
    assert report.ok and all("was not run" in note.what for note in report.notes)
    report = verify(made.root, gate=gate)
    assert (report.faults, report.notes) == ([], [])
    strict = verify(made.root, gate=lambda answers: ["no"] * len(answers))
    assert any("quality.gate" in finding.what for finding in strict.faults)


def test_facts_and_decisions_are_part_of_what_is_recomputed(tmp_path) -> None:
    made = Builder(tmp_path / "store")
    for shard in (0, 1):
        made.collect(shard, lambda wire_id, key, place: [], copies=2)
    made.refuse(2)
    before = made.settled()
    ids = before.selection["record_id"].to_pylist()
    decisions = pa.table(
        {
            "record_id": ids[:2],
            "state": ["human_review", "cancelled"],
            "reason": ["a", "b"],
            "decision": ["d1", "d2"],
        }
    )
    _, evidence = made.settle(Facts(decisions=decisions, close_by_passed=True))
    assert evidence.closed and evidence.states["human_review"] == len(ids) - 1
    report = verify(made.root)
    assert (report.faults, report.notes) == ([], [])
    # Facts that were not recorded give other states.
    for path, document in list(documents(made.root)):
        if document["kind"] == KINDS[3]:
            text = path.read_bytes().replace(b'"close_by_passed":true', b'"close_by_passed":false')
            path.unlink()
            forged = put(made.root, text)
    assert faults_of(verify(made.root), made.root, forged)


def test_an_open_revision_verifies_and_says_that_it_is_open(tmp_path) -> None:
    made = Builder(tmp_path / "store")
    made.collect(0, lambda wire_id, key, place: [], copies=2)
    made.settle()
    report = verify(made.root)
    assert report.ok
    assert report.revisions[0]["closed"] is False


def test_strays_are_noted_by_name(folder) -> None:
    (folder / "notes.txt").write_text("mine")
    stray = put(folder, b"nobody names me")
    report = verify(folder)
    assert report.ok
    assert {note.file for note in report.notes} == {
        "notes.txt",
        object_path(folder, stray).relative_to(folder).as_posix(),
    }


@pytest.mark.parametrize(
    "content",
    [
        b'{"kind": "llm_batch_assets.shard_closure", "version": 1}',
        b'{"kind": "llm_batch_assets.revision_closure", "version": 1, "attempts": 3}',
        b'{"kind": "llm_batch_assets.job_closure", "version": 2}',
        b'{"kind": "llm_batch_assets.manifest", "version": 1, "records_digest": "../x"}',
    ],
)
def test_documents_of_a_stranger_are_faults_and_no_crash(folder, content: bytes) -> None:
    strange = put(folder, content)
    assert faults_of(verify(folder), folder, strange)


def test_a_closure_that_the_reader_knows_must_be_there(folder) -> None:
    report = verify(folder, closure="0" * 64)
    assert [finding.file for finding in report.faults] == ["0" * 64]


def test_a_folder_that_is_none_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="no artifact folder"):
        verify(tmp_path)


def test_the_command_names_faults_and_exits_with_four(folder) -> None:
    runner = CliRunner()
    done = runner.invoke(command, [str(folder), "--format", "json"], standalone_mode=False)
    assert done.return_value == 0
    assert json.loads(done.stdout)["ok"] is True
    path = next(p for p in files(folder) if p.name != "store.json")
    path.write_bytes(path.read_bytes() + b"x")
    done = runner.invoke(command, [str(folder)], standalone_mode=False)
    assert done.return_value == 4
    assert path.name in done.stdout and "ok=false" in done.stdout
