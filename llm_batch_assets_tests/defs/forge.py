"""Reports in which exactly one thing is wrong, put in the place of an honest one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from llm_batch_assets.defs.report import Report, load_report
from llm_batch_assets.defs.resources import llm_batch
from llm_batch_assets.deps import Deps
from llm_batch_assets.ledger import schema
from llm_batch_assets.reconcile.digests import hex_set_digest, put_document, rows_digest
from llm_batch_assets.reconcile.model import Answer
from llm_batch_assets.reconcile.tables import put_table
from llm_batch_assets_tests.defs.loop import DATASET, Loop


class Forgery:
    """A copy of a report that may be changed, then written as if accounting had."""

    def __init__(self, report: Report) -> None:
        self.closure = copy.deepcopy(report.closure)
        self.shards = copy.deepcopy(report.shards)
        self.settled = report.settled
        self.candidate = report.candidate
        self.row: dict[str, Any] = {}

    def first(self) -> int:
        """Index of the first accepted record."""
        return int(pc.index(self.settled["state"], "accepted").as_py())

    def set(self, table: str, column: str, row: int, value: Any) -> None:
        """One cell of ``settled`` or ``candidate``."""
        found: pa.Table = getattr(self, table)
        values = found[column].to_pylist()
        values[row] = value
        number = found.schema.get_field_index(column)
        new = pa.array(values, found.schema.field(column).type)
        setattr(self, table, found.set_column(number, found.schema.field(column), new))

    def write(self, deps: Deps) -> str:
        """Store everything and give the new closure's digest."""
        table, candidate = self.settled, self.candidate
        self.closure["table"] = {
            "object": put_table(deps.store, table),
            "rows_digest": rows_digest(table),
        }
        self.closure["candidate"] = {
            "object": put_table(deps.store, candidate),
            "rows_digest": rows_digest(candidate),
            "records": candidate.num_rows,
        }
        for number, attempt in enumerate(self.closure["attempts"], start=1):
            for entry in attempt["shards"]:
                name = f"{DATASET}/r1/a{number}/p{entry['shard']:05d}"
                entry["closure"] = put_document(deps.store, self.shards[name])
        return put_document(deps.store, self.closure)


def _missing(forged: Forgery) -> None:
    forged.set("settled", "cls", forged.first(), "missing")


def _anomaly(kind: str) -> Callable[[Forgery], None]:
    def change(forged: Forgery) -> None:
        shard = next(iter(forged.shards.values()))
        shard["closed"] = False
        shard["anomalies"]["counts"][kind] = 1

    return change


def _sets(forged: Forgery) -> None:
    forged.closure["sets"]["accepted"] = "0" * 64


def _open(forged: Forgery) -> None:
    row = forged.first()
    ident = forged.settled["record_id"][row].as_py()
    forged.set("settled", "state", row, "open")
    forged.set("settled", "next", row, "hold")
    forged.closure["states"]["accepted"] -= 1
    forged.closure["states"]["open"] += 1
    for state in forged.closure["states"]:
        ids = forged.settled["record_id"].filter(pc.equal(forged.settled["state"], state))
        forged.closure["sets"][state] = hex_set_digest(ids)
    forged.candidate = forged.candidate.filter(pc.not_equal(forged.candidate["record_id"], ident))


def _contract(forged: Forgery) -> None:
    forged.set("candidate", "answer", 0, '{"summary": 1, "topic": "data"}')


def _gate(forged: Forgery) -> None:
    next(iter(forged.shards.values()))["gate_version"] = "v9"


def _model(forged: Forgery) -> None:
    forged.set("candidate", "served_model", 0, "gpt-4o-2024-08-06")


def _fraction(forged: Forgery) -> None:
    forged.row["min_accepted_ppm"] = 1_000_000


FORGERIES: dict[str, Callable[[Forgery], None]] = {
    "no_missing": _missing,
    "no_unknown": _anomaly("unknown"),
    "no_duplicate": _anomaly("duplicate"),
    "sets_cover_manifest": _sets,
    "nothing_open": _open,
    "output_contract": _contract,
    "quality_gate": _gate,
    "served_model": _model,
    "accepted_fraction": _fraction,
}
"""Check -> what makes it, and only it, fail."""


def refuses_bad(answers: list[Answer]) -> list[str | None]:
    """A workload's gate: the summary "bad" is not acceptable."""
    return ["bad" if answer.value["summary"] == "bad" else None for answer in answers]


def pass_over_gate(forged: Forgery) -> None:
    """Evidence as it was, and an answer in the candidate that the gate would have refused."""
    forged.set("candidate", "answer", 0, '{"summary": "bad", "topic": "data"}')


def forge(
    loop: Loop, check: str, change: Callable[[Forgery], None] | None = None
) -> Callable[[], None]:
    """Make one check's report wrong; the returned function mends it."""
    with llm_batch.open(actor="test") as deps:
        report = load_report(loop.workload, DATASET, deps)
        honest = {
            "closure_digest": report.row.closure_digest,
            "min_accepted_ppm": report.row.min_accepted_ppm,
        }
        forged = Forgery(report)
        (change or FORGERIES[check])(forged)
        _point(deps, {"closure_digest": forged.write(deps), **forged.row})

    def mend() -> None:
        with llm_batch.open(actor="test") as deps:
            _point(deps, honest)

    return mend


def _point(deps: Deps, values: dict[str, Any]) -> None:
    with deps.ledger.write("test") as connection:
        connection.execute(sa.update(schema.revisions).values(**values))
