"""Freezing a dataset: record batches in, a manifest with its request files out (attempt 1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import chain

import numpy as np
import pyarrow as pa

from llm_batch_assets.artifacts import ArtifactStore
from llm_batch_assets.errors import DatasetError
from llm_batch_assets.identity import RecordIds
from llm_batch_assets.manifest import columns
from llm_batch_assets.manifest.assemble import Frozen, Keys, assemble, job_keys, shard_limits
from llm_batch_assets.manifest.model import workload_fields
from llm_batch_assets.manifest.prompt import Requests
from llm_batch_assets.manifest.spool import Spool
from llm_batch_assets.manifest.table import Faults, check_columns, key_cell, shown_key
from llm_batch_assets.manifest.table import Keys as RowKeys
from llm_batch_assets.workload import Workload, check_dataset_key

BATCH_ROWS = 4096
"""Rows that are Python objects at a time."""

MAX_KEPT_BACK_PERCENT = 1
"""Share of records that preflight may keep back before the dataset is refused."""

_NO_LINEAGE = (None, None, None)


class Prepared:
    """Every record read, checked and encoded; nothing is in the store yet.

    Attributes:
        keys: the job's names: equal for the same rows in any order.
    """

    def __init__(
        self,
        workload: Workload,
        spool: Spool,
        *,
        dataset: str,
        revision: int,
        deployment: str,
        submitter: str,
    ) -> None:
        self._spool = spool
        self._by_id = spool.by_id()
        self._fields = {
            **workload_fields(workload),
            "dataset": dataset,
            "revision": revision,
            "attempt": 1,
            "deployment": deployment,
            "submitter": submitter,
            "parent_job_key": None,
        }
        self.keys: Keys = self._job_keys()

    def _job_keys(self) -> Keys:
        fields = self._fields
        return job_keys(
            self._spool,
            self._by_id,
            tenant_id=fields["tenant_id"],
            deployment=fields["deployment"],
            workload=fields["workload"],
            dataset=fields["dataset"],
            revision=fields["revision"],
            attempt=1,
            parent_job_key=None,
            model=fields["model"],
            prompt_version=fields["prompt_version"],
            generation_digest=fields["generation_digest"],
        )

    def carry(self, record_ids: Collection[str], carried_digest: str) -> None:
        """Leave out records whose answers are taken over: attempt 1 asks only the others.

        Args:
            record_ids: in hex; each is one of these records.
            carried_digest: of the table in the store that names their answers.
        """
        spool = self._spool
        gone = {bytes.fromhex(record_id) for record_id in record_ids}
        left = [index for index in self._by_id.tolist() if spool.id_at(index) not in gone]
        if len(left) + len(gone) != len(self._by_id):
            raise DatasetError("An answer is carried over for a record that is not asked here.")
        self._by_id = np.asarray(left, dtype=np.intp)
        self._fields |= {"carried_records": len(gone), "carried_digest": carried_digest}
        self.keys = self._job_keys()

    def records(self) -> pa.Table:
        """What ``drift`` compares: record_id, business_key, source_version, request_digest."""
        spool, order = self._spool, self._by_id.tolist()
        metas = [spool.entry(index)[1] for index in order]
        return pa.table(
            {
                "record_id": [spool.id_at(index).hex() for index in order],
                "business_key": [meta[0] for meta in metas],
                "source_version": pa.array([meta[1] for meta in metas], pa.string()),
                "request_digest": [spool.digest_at(index).hex() for index in order],
            }
        )

    def commit(self, store: ArtifactStore, now: datetime) -> Frozen:
        """Write everything to the store, the manifest last."""
        return assemble(self._spool, self._by_id, self.keys, self._fields, now=now, store=store)


@contextmanager
def prepare(
    workload: Workload,
    batches: Iterable[pa.RecordBatch],
    *,
    dataset: str,
    revision: int,
    deployment: str,
    submitter: str,
    text_keys: bool = False,
) -> Iterator[Prepared]:
    """Read a table once, with bounded memory, and hold its request bodies on disk.

    Args:
        workload: the declaration.
        batches: the source records; all batches have one schema.
        dataset: the partition key.
        revision: 1 for the first freezing of the dataset.
        deployment: names the ledger.
        submitter: who asked, for the manifest only.
        text_keys: the keys come from a format without types and must have been read as text.

    Raises:
        DatasetError: a fault of the table, in one sentence with the first ten offenders.
        WorkloadError: a template names a column that the table does not have.
    """
    check_dataset_key(dataset)
    with Spool() as spool:
        _fill(spool, workload, batches, text_keys=text_keys)
        prepared = Prepared(
            workload,
            spool,
            dataset=dataset,
            revision=revision,
            deployment=deployment,
            submitter=submitter,
        )
        yield prepared


def freeze(
    workload: Workload,
    batches: Iterable[pa.RecordBatch],
    *,
    dataset: str,
    revision: int,
    deployment: str,
    submitter: str,
    now: datetime,
    store: ArtifactStore,
    text_keys: bool = False,
) -> Frozen:
    """Freeze attempt 1 of a revision; see ``prepare`` for arguments and errors."""
    with prepare(
        workload,
        batches,
        dataset=dataset,
        revision=revision,
        deployment=deployment,
        submitter=submitter,
        text_keys=text_keys,
    ) as prepared:
        return prepared.commit(store, now)


def _fill(
    spool: Spool, workload: Workload, batches: Iterable[pa.RecordBatch], *, text_keys: bool
) -> None:
    stream = iter(batches)
    first = next(stream, None)
    if first is None:
        raise DatasetError("The dataset is empty: it has no rows to freeze.")
    names = first.schema.names
    check_columns(workload, names)
    limits = shard_limits(workload.provider, workload.model, workload.endpoint, workload.limits)
    requests = Requests(workload, names, limits.bytes)
    keys = RowKeys(workload, text_keys=text_keys)
    ids = RecordIds(
        tenant_id=workload.tenant_id,
        workload=workload.name,
        prompt_version=workload.prompt.version,
        config_digest=workload.config_digest,
        salt=workload.salt,
    )
    kept_back = Faults(
        "records cannot be sent", "That is more than 1 % of the dataset, so nothing was frozen."
    )
    for batch in _slices(chain([first], stream)):
        if batch.schema.names != names:
            raise DatasetError("The batches of the table have different columns.")
        business, versions = keys.read(batch)
        values = {name: columns.values(batch, name) for name in requests.columns}
        found = requests.render(values, batch.num_rows)
        for key, version, request in zip(business, versions, found, strict=True):
            if key is None:
                continue
            meta = (key_cell(key), version, *_NO_LINEAGE)
            if request.rule is not None:
                kept_back.add(f"{shown_key(meta)}: {request.rule}")
            spool.add(
                ids(key, version),
                request.digest,
                request.body,
                meta,
                rule=request.rule,
                group=request.group,
                inputs=request.inputs,
            )
    keys.check()
    spool.finish()
    _check_whole(spool, kept_back, workload, limits.minimum)


def _check_whole(spool: Spool, kept_back: Faults, workload: Workload, minimum: int) -> None:
    total = len(spool)
    if total == 0:
        raise DatasetError("The dataset is empty: it has no rows to freeze.")
    repeated = Faults(
        "rows share their key with another row",
        "Make business_key and source_version together unique; nothing was sent.",
    )
    for index in spool.repeated(spool.by_id()):
        repeated.add(f"row {index + 1} {shown_key(spool.entry(index)[1])}")
    if repeated.count:
        raise DatasetError(repeated.sentence())
    if kept_back.count * 100 > MAX_KEPT_BACK_PERCENT * total:
        raise DatasetError(kept_back.sentence())
    if total - kept_back.count < minimum:
        raise DatasetError(
            f"{workload.provider} runs no batch of fewer than {minimum} records and this dataset "
            f"has {total - kept_back.count}; put more records in one dataset or use another "
            "provider."
        )


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)
