"""What verification found, and how two statements of the same thing differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LIMIT = 10


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that differs: the file (relative to the folder) and what about it."""

    file: str
    what: str


@dataclass(slots=True)
class Report:
    """The result of ``verify``.

    Attributes:
        faults: what cannot be: the folder does not prove what it says.
        notes: what a person should know, and what was not recomputed.
        revisions: the revision closures that were recomputed, with what they say.
        counts: how many objects, bytes, documents and records were checked.
    """

    faults: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    revisions: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return not self.faults

    def fault(self, file: str, what: str) -> None:
        """Add a fault once."""
        if (finding := Finding(file, what)) not in self.faults:
            self.faults.append(finding)

    def note(self, file: str, what: str) -> None:
        """Add a note once."""
        if (finding := Finding(file, what)) not in self.notes:
            self.notes.append(finding)

    def count(self, name: str, more: int = 1) -> None:
        """Count something that was checked."""
        self.counts[name] = self.counts.get(name, 0) + more


def differences(recorded: Any, computed: Any, path: str = "") -> list[str]:
    """Where two JSON values differ, by path, at most ten."""
    found: list[str] = []
    for line in _walk(recorded, computed, path):
        found.append(line)
        if len(found) == _LIMIT:
            break
    return found


def _walk(recorded: Any, computed: Any, path: str) -> Iterator[str]:
    if isinstance(recorded, Mapping) and isinstance(computed, Mapping):
        for key in sorted(recorded.keys() | computed.keys()):
            where = f"{path}.{key}" if path else str(key)
            if key not in computed:
                yield f"{where}: recorded, but nothing gives it"
            elif key not in recorded:
                yield f"{where}: not recorded"
            else:
                yield from _walk(recorded[key], computed[key], where)
    elif isinstance(recorded, list) and isinstance(computed, list):
        if len(recorded) != len(computed):
            yield f"{path}: {len(recorded)} entries recorded, {len(computed)} recomputed"
        for number, (one, other) in enumerate(zip(recorded, computed, strict=False)):
            yield from _walk(one, other, f"{path}[{number}]")
    elif not _same(recorded, computed):
        yield f"{path}: recorded {_short(recorded)}, recomputed {_short(computed)}"


def row_differences(recorded: pa.Table, computed: pa.Table) -> list[str]:
    """Which rows differ, naming record and column, at most ten."""
    if recorded.schema.names != computed.schema.names:
        return [f"columns {recorded.schema.names} recorded, {computed.schema.names} recomputed"]
    if recorded.num_rows != computed.num_rows:
        return [f"{recorded.num_rows} rows recorded, {computed.num_rows} recomputed"]
    found: list[str] = []
    for name in recorded.schema.names:
        one, other = recorded[name], computed[name]
        other = other.cast(one.type) if other.type != one.type else other
        same = pc.equal(one, other)
        same = pc.if_else(
            pc.and_(pc.is_null(one), pc.is_null(other)), True, pc.fill_null(same, False)
        )
        for row in np.flatnonzero(~np.asarray(same, bool))[: _LIMIT - len(found)].tolist():
            who = recorded["record_id"][row].as_py() if "record_id" in recorded.schema.names else ""
            found.append(
                f"row {row} {who}: {name} recorded {_short(one[row].as_py())}, "
                f"recomputed {_short(other[row].as_py())}"
            )
    return found


def _same(recorded: Any, computed: Any) -> bool:
    # Canonical JSON writes 1.0 as 1; true is no number.
    numbers = all(isinstance(v, int | float) and type(v) is not bool for v in (recorded, computed))
    return (numbers or type(recorded) is type(computed)) and bool(recorded == computed)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
