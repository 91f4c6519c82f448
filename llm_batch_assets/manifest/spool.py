"""Request bodies on disk between the two passes of a freeze: about 100 bytes of memory a record.

Wire ids need the job's key, which needs every record id and request digest: so bodies wait here.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

_FLUSH = 4 << 20


class Spool:
    """Bodies and their facts, in input order; read back in any order."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="llm_batch_assets-")  # noqa: SIM115
        self._buffer = bytearray()
        self._written = 0
        self._ids = bytearray()
        self._digests = bytearray()
        self._offsets = array("Q")
        self._body_sizes = array("I")
        self._rules = array("b")
        self._groups = array("Q")
        self._inputs = array("I")
        self.rule_names: list[str] = []

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._body_sizes)

    def add(
        self,
        record_id: bytes,
        request_digest: bytes,
        body: bytes,
        meta: Sequence[Any],
        *,
        rule: str | None = None,
        group: int = 0,
        inputs: int = 1,
    ) -> None:
        """One record; ``meta`` is small JSON that ``entry`` gives back.

        Args:
            record_id: 32 raw bytes.
            request_digest: 32 raw bytes.
            body: as sent; empty where ``rule`` keeps the record back.
            meta: business key, source version and, in a retry, the lineage.
            rule: the preflight rule that keeps it back.
            group: records of one group follow each other in the shards.
            inputs: embedding inputs in this body.
        """
        self._ids += record_id
        self._digests += request_digest
        self._offsets.append(self._written + len(self._buffer))
        self._body_sizes.append(len(body))
        self._rules.append(-1 if rule is None else self._rule(rule))
        self._groups.append(group)
        self._inputs.append(inputs)
        self._buffer += body
        self._buffer += orjson.dumps(meta)
        if len(self._buffer) >= _FLUSH:
            self._flush()

    def _rule(self, name: str) -> int:
        if name not in self.rule_names:
            self.rule_names.append(name)
        return self.rule_names.index(name)

    def _flush(self) -> None:
        self._file.write(self._buffer)
        self._written += len(self._buffer)
        self._buffer.clear()

    def finish(self) -> None:
        """No more records: everything is on disk."""
        self._flush()
        self._file.flush()
        self._offsets.append(self._written)

    @property
    def ids(self) -> NDArray[np.void]:
        """Record ids, one ``V32`` each."""
        return np.frombuffer(self._ids, dtype="V32")

    def id_at(self, index: int) -> bytes:
        """One record id as 32 raw bytes."""
        return bytes(self._ids[32 * index : 32 * index + 32])

    def digest_at(self, index: int) -> bytes:
        """One request digest as 32 raw bytes."""
        return bytes(self._digests[32 * index : 32 * index + 32])

    @property
    def body_sizes(self) -> NDArray[np.int64]:
        """Bytes of each body."""
        return np.asarray(self._body_sizes, dtype=np.int64)

    @property
    def inputs(self) -> NDArray[np.int64]:
        """Embedding inputs of each body."""
        return np.asarray(self._inputs, dtype=np.int64)

    @property
    def kept_back(self) -> NDArray[np.bool_]:
        """Which records preflight keeps back."""
        return np.asarray(self._rules) >= 0

    def rule_at(self, index: int) -> str | None:
        """The rule that keeps a record back, or None."""
        number = self._rules[index]
        return None if number < 0 else self.rule_names[number]

    def by_id(self) -> NDArray[np.intp]:
        """Indices in ascending order of record id."""
        # Big-endian words compare like the bytes they come from.
        words = np.frombuffer(self._ids, dtype=">u8").reshape(-1, 4)
        return np.lexsort((words[:, 3], words[:, 2], words[:, 1], words[:, 0]))

    def in_manifest_order(self, by_id: NDArray[np.intp]) -> NDArray[np.intp]:
        """Indices: kept back last, then by group, then by record id; input order has no part."""
        groups = np.asarray(self._groups)[by_id]
        kept = self.kept_back[by_id]
        return by_id[np.lexsort((groups, kept))]

    def entry(self, index: int) -> tuple[bytes, list[Any]]:
        """The body and the meta of one record."""
        start, end = self._offsets[index], self._offsets[index + 1]
        data = os.pread(self._file.fileno(), end - start, start)
        size = self._body_sizes[index]
        return data[:size], orjson.loads(data[size:])

    def repeated(self, by_id: NDArray[np.intp]) -> Iterator[int]:
        """Indices of records whose id another one has too, in input order."""
        words = np.frombuffer(self._ids, dtype=">u8").reshape(-1, 4)[by_id]
        same = (words[1:] == words[:-1]).all(axis=1)
        marked = np.zeros(len(by_id), dtype=bool)
        marked[1:] |= same
        marked[:-1] |= same
        yield from sorted(int(index) for index in by_id[marked])
