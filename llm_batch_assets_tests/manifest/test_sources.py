"""Sources: the same rows give the same ids from CSV, JSONL, Parquet and a DataFrame."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_batch_assets.errors import DatasetError, InputError
from llm_batch_assets.manifest import freeze, open_source, source_of
from llm_batch_assets_tests.manifest.helpers import NOW, lines_of, store, table_of, workload

KEYS = ("k", "v")
ROWS = [
    {"k": "007", "v": "1", "text": 'a,b "q"\nnext line é \u2028 end'},
    {"k": "7", "v": "1", "text": "x"},
    {"k": " pad ", "v": "1", "text": "tab\there"},
    {"k": "ünï", "v": "1", "text": ""},
]


def ids(tmp_path: Path, data: Any, **changes: Any) -> dict[str, str]:
    """Business key -> record id, after a whole freeze."""
    where = store(tmp_path)
    source = source_of(data, key_columns=KEYS)
    frozen = freeze(
        workload(**changes),
        source.batches,
        dataset="d",
        revision=1,
        deployment="dev",
        submitter="me",
        now=NOW,
        store=where,
        text_keys=source.text_keys,
    )
    table = table_of(where, frozen.manifest).to_pylist()
    assert len(lines_of(where, frozen.manifest)) == 1
    return {row["business_key"]: row["record_id"] + row["request_digest"] for row in table}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]], end: str = "\n") -> Path:
    text = end.join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_bytes(text.encode())
    return path


def test_text_keys_are_the_same_everywhere(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "t.parquet")
    want = ids(tmp_path, table)
    assert set(want) == {row["k"] for row in ROWS}
    for data in (
        tmp_path / "t.parquet",
        write_csv(tmp_path / "t.csv", ROWS),
        write_jsonl(tmp_path / "t.jsonl", ROWS),
        write_jsonl(tmp_path / "t.ndjson", ROWS, "\r\n\n"),
        pd.DataFrame(ROWS),
        pd.DataFrame(ROWS).astype({"k": "category"}),
        table.to_batches()[0],
        table.to_reader(),
        ROWS,
        table.cast(pa.schema([(name, pa.large_string()) for name in table.column_names])),
    ):
        assert ids(tmp_path, data) == want


def test_plain_integers_are_the_same_everywhere(tmp_path: Path) -> None:
    rows = [{"k": n, "v": 3, "text": "x"} for n in (7, -1, 2**53 + 1, 0)]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "t.parquet")
    want = ids(tmp_path, table)
    assert set(want) == {"7", "-1", str(2**53 + 1), "0"}
    for data in (
        tmp_path / "t.parquet",
        write_csv(tmp_path / "t.csv", rows),
        write_jsonl(tmp_path / "t.jsonl", rows),
        pd.DataFrame(rows),
        rows,
    ):
        assert ids(tmp_path, data) == want


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    want = ids(tmp_path, ROWS)
    for path in (write_csv(tmp_path / "t.csv", ROWS), write_jsonl(tmp_path / "t.jsonl", ROWS)):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert ids(tmp_path, path) == want


def test_jsonl_numbers_in_keys_keep_their_spelling(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    keys = ["1.50", "1e3", "-0", "123456789012345678901234567890", "true"]
    path.write_text("\n".join(f'{{"k": {key}, "v": "1", "text": "x"}}' for key in keys))
    assert set(ids(tmp_path, path)) == set(keys)


def test_jsonl_keeps_the_types_of_other_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows: list[dict[str, Any]] = [
        {"k": str(n), "v": "1", "text": text}
        for n, text in enumerate([1, 1.5, True, None, "s", [1, {"a": None}], {"b": "é"}])
    ]
    write_jsonl(path, rows)
    where = store(tmp_path)
    source = open_source(path, key_columns=KEYS)
    prompt = {
        "version": "v1",
        "user": "{{ text | tojson }}{% if text is true %} yes{% endif %}{% if not text %} no"
        "{% endif %}",
    }
    found = freeze(
        workload(prompt=prompt),
        source.batches,
        dataset="d",
        revision=1,
        deployment="dev",
        submitter="me",
        now=NOW,
        store=where,
        text_keys=True,
    )
    key = {
        row["wire_id"]: row["business_key"] for row in table_of(where, found.manifest).to_pylist()
    }
    [lines] = lines_of(where, found.manifest)
    texts = {int(key[line["custom_id"]]): line["body"]["input"] for line in lines}
    assert [texts[n] for n in range(7)] == [
        "1",
        "1.5",
        "true yes",
        "null no",
        '"s"',
        '[1, {"a": null}]',
        '{"b": "é"}',
    ]


@pytest.mark.parametrize("kind", ["jsonl", "frame"])
def test_a_lone_surrogate_reaches_preflight_and_stays_one_record(tmp_path: Path, kind: str) -> None:
    rows = [{"k": str(n), "v": "1", "text": "x"} for n in range(200)]
    rows[3]["text"] = "cut \ud83d"
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    data: Any = path if kind == "jsonl" else pd.DataFrame(rows, dtype=object)
    where = store(tmp_path)
    source = source_of(data, key_columns=KEYS)
    found = freeze(
        workload(),
        source.batches,
        dataset="d",
        revision=1,
        deployment="dev",
        submitter="me",
        now=NOW,
        store=where,
    )
    kept = table_of(where, found.manifest).to_pylist()[-1]
    assert (kept["business_key"], kept["preflight_rule"]) == ("3", "lone_surrogate")
    assert found.manifest.preflight_rejected == 1


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("t.csv", b"", "empty"),
        ("t.csv", b"k,k,v\n", "two columns are named 'k'"),
        ("t.csv", b"k,v,text\na,b\n", "no readable CSV"),
        ("t.csv", b"k,v,text\n", "empty"),
        ("t.csv", b"k,v,text\n,1,x\n", "row 1"),
        ("t.csv", b"\xff\xfe\n", "no CSV header"),
        ("t.jsonl", b"", "empty"),
        ("t.jsonl", b"{", "line 1 is no JSON"),
        ("t.jsonl", b'{"k": "a", "v": "1", "text": NaN}', "line 1 is no JSON"),
        ("t.jsonl", b'{"k": "a", "k": "b"}', "line 1 is no strict JSON .repeated key"),
        ("t.jsonl", b'{"k" : "a", "k": "b"}', "line 1 is no strict JSON .repeated key"),
        ("t.jsonl", b"[1]", "line 1 is no JSON object"),
        ("t.jsonl", b'\n{"k": "\xff"}', "line 2 is no UTF-8"),
        ("t.jsonl", b'{"k": "a", "v": "1", "text": "x"}\n{"z": 1}', "line 2 has a column 'z'"),
        ("t.jsonl", b'{"k": null, "v": "1", "text": "x"}', "row 1"),
        ("t.jsonl", b'{"k": [1], "v": "1", "text": "x"}', "Column 'k': a key must be text"),
        ("t.jsonl", b'{"k": "\\ud83d", "v": "1", "text": "x"}', "Column 'k'.*lone surrogate"),
        ("t.parquet", b"PAR1 no", "no readable Parquet"),
        ("t.xlsx", b"", "ends in .parquet, .csv or .jsonl"),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=says) as caught:
        ids(tmp_path, path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_what_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        open_source(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="is no table"):
        source_of(5)
    with pytest.raises(InputError, match="is no mapping"):
        ids(tmp_path, [5])
    with pytest.raises(InputError, match="make no table"):
        ids(tmp_path, [{"k": 1, "v": "1", "text": "x"}, {"k": "a", "v": "1", "text": "x"}])
    with pytest.raises(InputError, match="Column 'k' mixes types"):
        ids(tmp_path, pd.DataFrame({"k": [1, "a"], "v": "1", "text": "x"}))
    frame = pd.DataFrame([["a", "b", "1", "x"]], columns=["k", "k", "v", "text"])
    with pytest.raises(DatasetError, match="two columns named 'k'"):
        ids(tmp_path, frame)


def test_integers_that_pandas_made_floats_are_refused_by_name(tmp_path: Path) -> None:
    frame = pd.DataFrame({"k": [1, None], "v": "1", "text": "x"})
    with pytest.raises(DatasetError, match="Column 'k': a key must not be a float"):
        ids(tmp_path, frame)


def test_a_long_cell_is_read_whole(tmp_path: Path) -> None:
    rows = [{"k": "a", "v": "1", "text": "y" * 3_000_000}]
    want = ids(tmp_path, rows)
    assert ids(tmp_path, write_csv(tmp_path / "t.csv", rows)) == want
    assert ids(tmp_path, write_jsonl(tmp_path / "t.jsonl", rows)) == want
