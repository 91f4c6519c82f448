"""Reading keys out of a table, and refusing the table in one sentence where they do not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from llm_batch_assets.errors import DatasetError, InputError
from llm_batch_assets.identity import canonical_json, key_text
from llm_batch_assets.manifest import columns
from llm_batch_assets.workload import Workload

SHOWN = 10
"""How many offenders a refusal lists."""


@dataclass(slots=True)
class Faults:
    """Offenders of one kind, counted, of which the first ones are shown."""

    what: str
    remedy: str
    count: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, offender: str) -> None:
        """One more."""
        self.count += 1
        if len(self.shown) < SHOWN:
            self.shown.append(offender if len(offender) <= 120 else offender[:117] + "...")

    def sentence(self) -> str:
        """What is wrong, with the first ten offenders, and what to do."""
        more = f" and {self.count - len(self.shown)} more" if self.count > len(self.shown) else ""
        return f"{self.count} {self.what}: {'; '.join(self.shown)}{more}. {self.remedy}"


def check_columns(workload: Workload, names: Sequence[str]) -> None:
    """Refuse a table without the columns that keys come from.

    Raises:
        DatasetError: naming what is missing and what there is.
    """
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise DatasetError(f"The table has two columns named {repeated[0]!r}; rename one.")
    wanted = [("business_key", name) for name in workload.key_columns]
    if workload.source_version is not None:
        wanted.append(("source_version", workload.source_version))
    for where, name in wanted:
        if name not in names:
            have = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            raise DatasetError(
                f"{where}: the table has no column {name!r}; its columns are {have}."
            )


class Keys:
    """Key text of each row; faults are gathered and raised together by ``check``."""

    def __init__(self, workload: Workload, *, text_keys: bool) -> None:
        self._columns = workload.key_columns
        self._version = workload.source_version
        self._text_keys = text_keys
        self._bad = Faults("keys that cannot be used", "Mend these rows; nothing was sent.")
        self._row = 0

    def read(self, batch: pa.RecordBatch) -> tuple[list[str | list[str] | None], list[str | None]]:
        """Business keys (None where faulty) and source versions of a batch's rows."""
        texts = [self._texts(batch, name, key=True) for name in self._columns]
        versions: list[str | None]
        if self._version is None:
            versions = [None] * batch.num_rows
        else:
            versions = self._texts(batch, self._version, key=False)
        self._row += batch.num_rows
        if len(texts) == 1:
            return list(texts[0]), versions
        whole: list[str | list[str] | None] = []
        for number, parts in enumerate(zip(*texts, strict=True)):
            if None in parts:
                whole.append(None)
            elif not any(parts):
                self._bad.add(f"row {self._row - batch.num_rows + number + 1} (empty)")
                whole.append(None)
            else:
                whole.append([part for part in parts if part is not None])
        return whole, versions

    def _texts(self, batch: pa.RecordBatch, name: str, *, key: bool) -> list[str | None]:
        items = columns.values(batch, name)
        single = key and len(self._columns) == 1
        found: list[str | None] = []
        for number, item in enumerate(items):
            try:
                if self._text_keys and item is not None and not isinstance(item, str):
                    raise InputError(f"Column {name!r}: {item!r} was not read as text.")
                text = key_text(item, name)
                if single and not text:
                    raise InputError(f"Column {name!r}: a key must not be empty.")
                found.append(text)
            except InputError as error:
                self._bad.add(f"row {self._row + number + 1} ({str(error).rstrip('.')})")
                found.append(None)
        return found

    def check(self) -> None:
        """Raise what was gathered.

        Raises:
            DatasetError: with the first ten offenders.
        """
        if self._bad.count:
            raise DatasetError(self._bad.sentence())


def key_cell(key: str | list[str]) -> str:
    """The key as one text: itself, or the canonical JSON array of its parts."""
    return key if isinstance(key, str) else canonical_json(key).decode()


def shown_key(meta: Sequence[Any]) -> str:
    """A key as a message shows it."""
    version = "" if meta[1] is None else f" (version {meta[1]})"
    return f"{meta[0]!r}{version}"
