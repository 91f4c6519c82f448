"""The nine verdicts about a report: whether its set may be published. Pure.

Each is WARN while a next step is planned, ERROR when it needs a person, and names records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_batch_assets.defs.keys import CHECKS
from llm_batch_assets.defs.report import Report
from llm_batch_assets.errors import LLMBatchError
from llm_batch_assets.publish import PPM

if TYPE_CHECKING:
    from llm_batch_assets.manifest import Manifest
    from llm_batch_assets.reconcile.model import Rules

NAMED = 10
GATE_BATCH = 1024
_SENSORS = "The sensors go on by themselves."
_REVIEW = "It needs a person: `llm-batch-assets show RECORD` says why it is where it is."
_AGAIN = "Materialize raw_results of that shard: its files are fetched and judged again."
_STOP = "It needs a person: report and manifest disagree. `llm-batch-assets verify` says where."


@dataclass(frozen=True, slots=True)
class Verdict:
    """One check's answer.

    Attributes:
        planned: what is amiss is settled by a step that is planned.
        text: one sentence of ours. Business keys are the source's own text, which a UI might
            render; they are only in ``records``, the first few of them.
    """

    name: str
    passed: bool
    planned: bool
    text: str
    count: int = 0
    records: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


def verdicts(report: Report) -> list[Verdict]:
    """All nine, in the order in which people read them."""
    return [_JUDGES[name](report) for name in CHECKS]


def _no_missing(report: Report) -> Verdict:
    table = report.settled
    rows = table.filter(
        pc.and_(
            pc.fill_null(pc.equal(table["cls"], "missing"), False),
            pc.is_in(table["state"], pa.array(["open", "accepted"])),
        )
    )
    again = pc.fill_null(pc.equal(rows["next"], "retry"), False)
    planned = rows.num_rows > 0 and bool(pc.all(again).as_py())
    return _of_rows("no_missing", rows, planned, "have no result line and no resolution")


def _anomalies(name: str, kind: str, what: str) -> Callable[[Report], Verdict]:
    def judge(report: Report) -> Verdict:
        open_shards = {
            key: shard["anomalies"]["counts"].get(kind, 0)
            for key, shard in report.shards.items()
            if not shard["closed"] and shard["anomalies"]["counts"].get(kind, 0)
        }
        count = sum(open_shards.values())
        if not count:
            seen = sum(s["anomalies"]["counts"].get(kind, 0) for s in report.shards.values())
            return Verdict(name, True, False, f"0 {what} without a resolution ({seen} resolved).")
        named = tuple(open_shards)[:NAMED]
        text = f"{count} {what} without a resolution, in {', '.join(named)}. {_AGAIN}"
        return Verdict(name, False, False, text, count, named)

    return judge


def _sets_cover_manifest(report: Report) -> Verdict:
    faults = list(_set_faults(report))
    if not faults:
        text = f"The sets are disjoint and cover all {report.manifest.expected_record_count} ids."
        return Verdict("sets_cover_manifest", True, False, text)
    text = f"{'; '.join(faults)}. {_STOP}"
    return Verdict("sets_cover_manifest", False, False, text, len(faults))


def _set_faults(report: Report) -> Iterator[str]:
    from llm_batch_assets.reconcile.digests import hex_set_digest

    expected, settled = report.manifest.expected_record_count, report.settled
    states, sets = report.closure["states"], report.closure["sets"]
    if settled.num_rows != expected:
        yield f"{settled.num_rows} records are settled, the manifest has {expected}"
    if sum(states.values()) != expected:
        yield f"the sets have {sum(states.values())} ids, the manifest has {expected}"
    repeated = settled.num_rows - pc.count_distinct(settled["record_id"]).as_py()
    if repeated:
        yield f"{repeated} ids are in more than one set"
    for state in states:
        ids = settled["record_id"].filter(pc.equal(settled["state"], state))
        if hex_set_digest(ids) != sets.get(state):
            yield f"the set {state} is not the one that its digest names"
    if report.candidate.num_rows != states["accepted"]:
        rows = report.candidate.num_rows
        yield f"the candidate has {rows} rows for {states['accepted']} accepted"


def _nothing_open(report: Report) -> Verdict:
    rows = report.settled.filter(pc.equal(report.settled["state"], "open"))
    steps = rows["next"]
    held = pc.sum(pc.fill_null(pc.equal(steps, "hold"), False)).as_py() or 0
    planned = rows.num_rows > 0 and not held
    return _of_rows("nothing_open", rows, planned, "have no terminal state yet")


def _output_contract(report: Report) -> Verdict:
    from llm_batch_assets.reconcile.quality import Judge
    from llm_batch_assets.wire.classes import ACCEPTED

    output = report.manifest.output
    judge = Judge(_rules(report.manifest))
    wrong = 0
    names: list[str] = []
    for batch in report.candidate.select(["business_key", "answer"]).to_batches():
        rows = zip(batch["business_key"].to_pylist(), batch["answer"].to_pylist(), strict=True)
        for name, text in rows:
            rule, _ = judge.judge("", text, output.answer == "embedding")
            if rule != ACCEPTED:
                wrong += 1
                if len(names) < NAMED:
                    names.append(name)
    return _of_names(
        "output_contract",
        wrong,
        names,
        f"of {report.candidate.num_rows} accepted answers do not fit output {output.version}",
        f"All {report.candidate.num_rows} accepted answers fit output {output.version}.",
    )


def _quality_gate(report: Report) -> Verdict:
    gate = report.manifest.gate
    wanted = None if gate is None else gate.version
    other = {
        key: shard["gate_version"]
        for key, shard in report.shards.items()
        if shard["gate_version"] != wanted and shard["basis"] == "results"
    }
    label = "no gate" if wanted is None else f"gate {wanted}"
    if other or gate is None:
        return _of_names(
            "quality_gate",
            len(other),
            list(other)[:NAMED],
            f"shards were not judged by {label}, which the manifest names",
            f"Every shard was judged by what the manifest names: {label}.",
        )
    try:
        wrong, names = _gated(report, gate.function)
    except LLMBatchError as error:
        text = f"Gate {wanted} cannot judge the candidate again: {error}"
        return Verdict("quality_gate", False, False, text, report.candidate.num_rows)
    return _of_names(
        "quality_gate",
        wrong,
        names,
        f"of {report.candidate.num_rows} accepted answers do not pass {label}",
        f"All {report.candidate.num_rows} accepted answers pass {label}, and every shard did.",
    )


def _gated(report: Report, function: str) -> tuple[int, list[str]]:
    """How many accepted answers the gate refuses now, and the first of them.

    The candidate is judged as it is, by the function that the manifest names: its evidence may
    be honest and the table changed.

    Raises:
        LLMBatchError: the gate cannot be imported, or fails by itself.
    """
    from llm_batch_assets.reconcile.frozen import load_gate
    from llm_batch_assets.reconcile.model import Answer
    from llm_batch_assets.reconcile.quality import Judge

    embedding = report.manifest.output.answer == "embedding"
    judge = Judge(replace(_rules(report.manifest), gate=load_gate(function)))
    wrong = 0
    names: list[str] = []
    columns = ["record_id", "business_key", "answer"]
    for batch in report.candidate.select(columns).to_batches(max_chunksize=GATE_BATCH):
        ids, keys, texts = (column.to_pylist() for column in batch.columns)
        answers = [
            Answer("", str(ident), text, judge.judge("", text, embedding)[1])
            for ident, text in zip(ids, texts, strict=True)
        ]
        for key, reason in zip(keys, judge.gate(answers), strict=True):
            if reason is not None:
                wrong += 1
                names += [key] if len(names) < NAMED else []
    return wrong, names


def _rules(manifest: Manifest) -> Rules:
    from llm_batch_assets.reconcile.model import Rules

    return Rules(
        provider=manifest.provider,
        endpoint=manifest.endpoint,
        answer=manifest.output.answer,
        schema=manifest.output.json_schema,
    )


def _served_model(report: Report) -> Verdict:
    from llm_batch_assets.reconcile.served import same_model

    asked = report.manifest.model
    served = {
        row["values"]: row["counts"]
        for row in report.candidate["served_model"].value_counts().to_pylist()
    }
    other = [m for m in served if m is not None and not same_model(asked, m)]
    rows = report.candidate.filter(
        pc.is_in(report.candidate["served_model"], pa.array(other, pa.string()))
    )
    verdict = _of_names(
        "served_model",
        rows.num_rows,
        rows["business_key"].slice(0, NAMED).to_pylist(),
        f"accepted answers come from {', '.join(other)}, asked was {asked}",
        f"Every accepted answer that names its model names {asked}.",
    )
    facts: dict[str, Any] = {str(model): count for model, count in served.items()}
    return Verdict(
        verdict.name, verdict.passed, False, verdict.text, verdict.count, verdict.records, facts
    )


def _accepted_fraction(report: Report) -> Verdict:
    states, records = report.closure["states"], report.closure["records"]
    minimum = report.row.min_accepted_ppm
    fraction = states["accepted"] / records if records else 1.0
    facts = {"accepted_fraction": fraction, "min_accepted": minimum / PPM}
    text = f"{states['accepted']} of {records} records are accepted ({fraction:.4f})"
    if states["accepted"] * PPM >= minimum * records:
        return Verdict("accepted_fraction", True, False, f"{text}.", facts=facts)
    reachable = (states["accepted"] + states["open"]) * PPM >= minimum * records
    text += f"; publish.min_accepted is {minimum / PPM:g}."
    text += f" {_SENSORS if reachable else _REVIEW}"
    return Verdict("accepted_fraction", False, reachable, text, facts=facts)


def _of_rows(name: str, rows: pa.Table, planned: bool, what: str) -> Verdict:
    if not rows.num_rows:
        return Verdict(name, True, False, f"0 records {what}.")
    named = tuple(str(key) for key in rows["business_key"].slice(0, NAMED).to_pylist())
    text = f"{rows.num_rows} records {what}. {_SENSORS if planned else _REVIEW}"
    return Verdict(name, False, planned, text, rows.num_rows, named)


def _of_names(name: str, count: int, named: list[str], what: str, fine: str) -> Verdict:
    if not count:
        return Verdict(name, True, False, fine)
    return Verdict(name, False, False, f"{count} {what}. {_STOP}", count, tuple(named))


_JUDGES: dict[str, Callable[[Report], Verdict]] = {
    "no_missing": _no_missing,
    "no_unknown": _anomalies("no_unknown", "unknown", "rows with unknown ids"),
    "no_duplicate": _anomalies("no_duplicate", "duplicate", "conflicting duplicates"),
    "sets_cover_manifest": _sets_cover_manifest,
    "nothing_open": _nothing_open,
    "output_contract": _output_contract,
    "quality_gate": _quality_gate,
    "served_model": _served_model,
    "accepted_fraction": _accepted_fraction,
}
