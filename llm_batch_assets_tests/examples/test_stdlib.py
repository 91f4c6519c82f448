"""The standard library's docstrings as rows: real library, and small trees for the rules."""

import platform
import sys
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest

from llm_batch_assets.errors import DatasetError
from llm_batch_assets.examples import stdlib
from llm_batch_assets.examples.stdlib import SCHEMA, Reading, dataset_key, read_docstrings


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def _read(root: Path, **options: object) -> tuple[pa.Table, Reading]:
    reading = Reading()
    batches = read_docstrings(dataset_key(), root=root, reading=reading, **options)
    return pa.Table.from_batches(batches, schema=SCHEMA), reading


def test_real_library_is_read_whole_and_the_same_twice() -> None:
    reading = Reading()
    first = pa.Table.from_batches(read_docstrings(dataset_key(), reading=reading), SCHEMA)
    assert 6000 < first.num_rows < 12000
    assert reading.rows == first.num_rows
    names = first["qualname"].to_pylist()
    assert len(set(names)) == len(names)
    assert {"json", "json.dumps", "json.encoder.JSONEncoder.default"} <= set(names)
    assert not [name for name in names if name.startswith("test.")]
    assert set(first["python_version"].to_pylist()) == {platform.python_version()}
    assert first["docstring"].null_count == 0
    assert 0 < len(reading.repeated) < 200
    again = read_docstrings(dataset_key(), batch_rows=313, limit=2500)
    assert pa.Table.from_batches(again, SCHEMA).equals(first.slice(0, 2500))


def test_reading_imports_nothing() -> None:
    before = set(sys.modules)
    list(islice(read_docstrings(dataset_key(), batch_rows=50), 3))
    assert not {m for m in set(sys.modules) - before if m.split(".")[0] in {"antigravity", "this"}}


def test_limit_gives_the_first_rows_of_the_whole() -> None:
    some = pa.Table.from_batches(read_docstrings(dataset_key(), limit=600), SCHEMA)
    more = pa.Table.from_batches(read_docstrings(dataset_key(), limit=900), SCHEMA)
    assert some.num_rows == 600
    assert more.slice(0, 600).equals(some)


def test_the_first_definition_of_a_repeated_name_wins(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "a.py": (
                '"""Module a."""\n'
                "if True:\n    def f():\n        'first'\n"
                "else:\n    def f():\n        'second'\n"
                "class C:\n    'a class'\n    def m(self):\n        'method'\n"
                "        def hidden():\n            'private to m'\n"
                "try:\n    pass\nexcept ImportError:\n    def g():\n        'fallback'\n"
                "def silent():\n    pass\n"
            ),
            "pkg/__init__.py": '"""A package."""\n',
            "pkg/test/x.py": '"""A test."""\n',
            "broken.py": "def (:\n",
        },
    )
    table, reading = _read(root)
    rows = dict(zip(table["qualname"].to_pylist(), table["docstring"].to_pylist(), strict=True))
    assert rows == {
        "a": "Module a.",
        "a.f": "first",
        "a.C": "a class",
        "a.C.m": "method",
        "a.g": "fallback",
        "pkg": "A package.",
    }
    assert table["kind"].to_pylist() == [
        "module", "function", "class", "function", "function", "module",
    ]  # fmt: skip
    assert reading.repeated == ["a.f"]
    assert reading.unreadable == ["broken.py"]
    assert reading.files == 3


def test_another_python_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cpython-2\.7\.18.*this is"):
        next(read_docstrings("cpython-2.7.18"))
    with pytest.raises(DatasetError, match="no standard library"):
        next(read_docstrings(dataset_key(), root=tmp_path / "absent"))


def test_the_example_workload_fits_its_source() -> None:
    from llm_batch_assets.workload import Workload

    path = Path(str(stdlib.__file__)).parent / "docstring_summaries.yaml"
    workload = Workload.from_yaml(path)
    assert set(workload.key_columns) | {workload.source_version} <= set(SCHEMA.names)
    assert not workload.allow_floating_model
    assert workload.output.json_schema is not None
    assert set(workload.output.json_schema["properties"]) == {"summary", "topic"}
