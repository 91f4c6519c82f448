"""The documentation of the running Python's standard library, as rows.

Every module, class, function and method with a docstring, read with ``ast``: nothing is imported
or executed, and nothing of it is shipped with this package. Test packages are left out. The rows
depend on the files alone: the same installation gives the same rows in the same order.
"""

from __future__ import annotations

import ast
import json
import platform
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pyarrow as pa

from llm_batch_assets.errors import DatasetError

SCHEMA = pa.schema(
    [
        pa.field("qualname", pa.string(), nullable=False),
        pa.field("python_version", pa.string(), nullable=False),
        pa.field("module", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("docstring", pa.string(), nullable=False),
    ]
)

_LEFT_OUT = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
)

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Reading:
    """What one pass over the library met; complete once its rows are exhausted."""

    files: int = 0
    rows: int = 0
    repeated: list[str] = field(default_factory=list)
    """Qualified names defined again later in file order: the first definition won."""
    unreadable: list[str] = field(default_factory=list)
    """Files that do not parse (templates and broken fixtures), by relative path."""


def dataset_key(version: str | None = None) -> str:
    """The partition key of a Python version: ``cpython-3.11.7`` for the running one."""
    return f"{platform.python_implementation().lower()}-{version or platform.python_version()}"


def read_docstrings(
    dataset: str,
    *,
    limit: int | None = None,
    root: Path | None = None,
    reading: Reading | None = None,
    batch_rows: int = 1000,
) -> Iterator[pa.RecordBatch]:
    """Yield the documented names of the standard library as record batches.

    Args:
        dataset: the partition key; it must name the running Python, since other versions'
            sources are not here to be read.
        limit: stop after so many rows; None reads everything.
        root: the library's folder, by default that of the running Python.
        reading: filled with counts while the rows are taken.
        batch_rows: rows of one batch.

    Raises:
        DatasetError: when ``dataset`` names another Python, or there is no such folder.
    """
    if dataset != dataset_key():
        raise DatasetError(
            f"Dataset {dataset!r} cannot be read here: this is {dataset_key()}, and only the "
            "running Python's library is at hand.",
            remedy=f"Use --dataset {dataset_key()}.",
        )
    folder = root or Path(sysconfig.get_path("stdlib"))
    if not folder.is_dir():
        raise DatasetError(f"There is no standard library in {folder}.")
    rows = islice(_rows(folder, reading if reading is not None else Reading()), limit)
    version = platform.python_version()
    while chunk := list(islice(rows, batch_rows)):
        names, modules, kinds, texts = zip(*chunk, strict=True)
        versions = [version] * len(chunk)
        columns = [names, versions, modules, kinds, texts]
        yield pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in columns], schema=SCHEMA)


def _rows(folder: Path, reading: Reading) -> Iterator[tuple[str, str, str, str]]:
    seen: set[str] = set()
    for path in sorted(folder.rglob("*.py"), key=lambda p: p.relative_to(folder).as_posix()):
        relative = path.relative_to(folder)
        if _LEFT_OUT.intersection(relative.parts):
            continue
        reading.files += 1
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            reading.unreadable.append(relative.as_posix())
            continue
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        for name, kind, text in _documented(tree, module):
            if name in seen:
                reading.repeated.append(name)
                continue
            seen.add(name)
            reading.rows += 1
            yield name, module, kind, text


def _documented(tree: ast.Module, module: str) -> Iterator[tuple[str, str, str]]:
    if text := ast.get_docstring(tree):
        yield module, "module", text
    yield from _inside(tree, module)


def _inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Definitions below ``node`` in source order; bodies of functions are private to them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            name = f"{prefix}.{child.name}"
            kind = "class" if isinstance(child, ast.ClassDef) else "function"
            if text := ast.get_docstring(child):
                yield name, kind, text
            if kind == "class":
                yield from _inside(child, name)
        elif isinstance(child, ast.stmt | ast.excepthandler):
            # Definitions under `if`, `try` and `with` belong to the enclosing scope.
            yield from _inside(child, prefix)


def main(limit: int | None = None) -> None:
    """Write the rows as JSON lines to stdout, and what was left out to stderr."""
    reading = Reading()
    for batch in read_docstrings(dataset_key(), limit=limit, reading=reading):
        for row in batch.to_pylist():
            sys.stdout.write(json.dumps(row) + "\n")
    sys.stderr.write(
        f"{dataset_key()}: {reading.rows} documented names in {reading.files} files; "
        f"{len(reading.repeated)} repeated names left out.\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
