"""What follows from an account: dispositions, what to send again, hints for people."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import orjson

from llm_batch_assets.reconcile.model import Account
from llm_batch_assets.wire.readers import wire_of


def report(account: Account) -> dict[str, Any]:
    """The account in the words of ``cases/README.md``; ids are wire ids.

    ``exhausted`` counts only what this attempt answered or was paid for: a batch that executed
    nothing uses up nobody's attempt.
    """
    table, rules = account.table, account.rules
    ids = table["wire_id"].to_pylist()
    sets = account.sets()
    rows = list(
        zip(
            ids,
            table["cls"].to_pylist(),
            table["unqualified"].to_pylist(),
            table["hold"].to_pylist(),
            table["charged"].to_pylist(),
            strict=True,
        )
    )
    last = rules.attempt >= rules.max_attempts
    hold = [i for i, _, _, held, _ in rows if held is not None]
    exhausted = [
        i
        for i, cls, _, held, charged in rows
        if cls == "retryable" and held is None and charged and last
    ]
    gone = set(hold) | set(exhausted)
    again = [i for i, cls, *_ in rows if cls in ("retryable", "expired") and i not in gone]
    refetch = _bad_copy(account)
    # Rows of nobody while ids are missing: a wrong file, or mangled ids. A person looks first.
    unknown = bool(sets["unknown"]) or any(a.reason == "no_id" for a in account.anomalies)
    cancelled = account.view is not None and account.view.status == "cancelled"
    missing = sets["missing"]
    # What a job did not reach goes again at once, unless it may be among rows that nobody can read.
    unreadable = any(a.kind == "unreadable" for a in account.anomalies)
    unreached = _unreached(account) and not (unknown or unreadable)
    if refetch:
        again = []
    elif unreached:
        again = [i for i, cls, *_ in rows if i in set(again) or cls == "missing"]
    if_same = None
    if missing and not (refetch or unknown or cancelled or unreached or _no_evidence(account)):
        # What is missing may be paid for: it uses an attempt up like what was answered.
        if_same = [i for i, cls, *_ in rows if i in set(again) or (cls == "missing" and not last)]
    return {
        "sets": sets,
        "unqualified": [i for i, _, bad, *_ in rows if bad],
        "hold": hold,
        "exhausted": exhausted,
        "in_flight": ids if account.in_flight else [],
        "duplicate_identical": [ids[at] for at in account.identical],
        "rejected_lines": [
            {"file": a.name, "line": a.line, "reason": a.reason}
            for a in account.anomalies
            if a.kind == "unreadable"
        ],
        "retry_shard": again,
        "retry_shard_if_refetch_same": if_same,
        "closed": account.closed,
        "done": account.closed and not again and not hold,
        "partition_ok": sum(len(s) for name, s in sets.items() if name != "unknown")
        + (len(ids) if account.in_flight else 0)
        == len(ids),
        "answers": answers_of(account),
        "next": _next(account, sets, exhausted, again, refetch, if_same, unknown),
        "warn": warnings_of(account),
        "unknown_rows": [
            {"file": a.name, "line": a.line, "id": a.id, "reason": a.reason}
            for a in account.anomalies
            if a.kind == "unknown"
        ],
        "reasons": _reasons(account),
    }


def answers_of(account: Account) -> dict[str, Any]:
    """Wire id -> accepted answer: a JSON value, or the text itself."""
    rules = account.rules
    as_json = rules.answer in ("json", "tool", "embedding") or (
        rules.answer == "auto" and rules.schema is not None
    )
    found: dict[str, Any] = {}
    for wire_id, text in zip(
        account.table["wire_id"].to_pylist(), account.answers.to_pylist(), strict=True
    ):
        if text is None:
            continue
        found[wire_id] = json.loads(text) if as_json else text
    return found


def warnings_of(account: Account) -> list[str]:
    """Where the provider's counts differ from the rows, and what nobody read. Never a class."""
    warnings = []
    view = account.view
    if view is not None and not account.in_flight:
        counts = view.counts
        ended = None
        if counts.completed is not None:
            ended = counts.completed + (counts.failed or 0)
        if (ended is not None and ended != account.rows) or (
            counts.total is not None and counts.total not in (0, account.table.num_rows)
        ):
            warnings.append("counts_disagree")
    for raw in account.raws:
        if raw.kind == "bedrock_manifest":
            warnings.extend(_manifest_warnings(bytes(raw.data), account.rows))
    warnings.extend(f"not_read:{kind}" for kind in account.unread)
    if not account.in_flight and account.table.num_rows > 1:
        cls = Counter(account.table["rule"].to_pylist())
        rule, count = cls.most_common(1)[0]
        first = account.table["cls"][0].as_py()
        if count == account.table.num_rows and first == "permanent_failure":
            # A wrong request template fails every record in the same way (field report B24).
            warnings.append(f"all_records:{rule}")
    return warnings


def _manifest_warnings(data: bytes, rows: int) -> list[str]:
    try:
        found = orjson.loads(data)
        processed = found["processedRecordCount"]
    except (ValueError, KeyError, TypeError):
        return ["bedrock_manifest_unreadable"]
    return [] if processed == rows else ["bedrock_manifest_disagrees"]


def _bad_copy(account: Account) -> bool:
    """Whether the copy is short, bad or not there: nothing may be sent again on its word."""
    if account.in_flight:
        return False
    if not account.whole:
        return True
    rejected = [a for a in account.anomalies if a.kind == "unreadable"]
    return any(a.line == 0 for a in rejected) or (bool(rejected) and account.rows == 0)


def _unreached(account: Account) -> bool:
    view = account.view
    if view is None or view.raw_status not in wire_of(account.rules.provider).unreached:
        return False
    return all(raw.whole for raw in account.raws)


def _no_evidence(account: Account) -> bool:
    view = account.view
    if view is None:
        return not account.raws
    if view.status == "done" and not account.raws:
        return not view.results
    return view.status == "failed" and not view.faults and not account.rows


def _next(
    account: Account,
    sets: dict[str, list[str]],
    exhausted: list[str],
    again: list[str],
    refetch: bool,
    if_same: list[str] | None,
    unknown: bool,
) -> list[str]:
    """Hints, not decisions."""
    view = account.view
    if account.in_flight:
        strange = view is not None and view.status == "unknown"
        return ["poll", "alert:unknown_status"] if strange else ["poll"]
    hints = []
    if refetch:
        return ["refetch"]
    if sets["succeeded"]:
        hints.append("accept")
    if if_same is not None or any(a.kind == "unreadable" for a in account.anomalies):
        hints.append("refetch_once")
    reasons = set(account.table["reason"].to_pylist())
    if "capacity" in reasons:
        hints.append("backoff_until_capacity")
    if "reshape" in reasons:
        few = "bedrock.batch.too_few" in account.table["rule"].to_pylist()
        hints.append("reshape:merge_with_other_records" if few else "reshape:split")
    elif again or if_same:
        hints.append("submit_retry_shard")
    hints.extend(sorted({f"hold:{h}" for h in account.table["hold"].to_pylist() if h is not None}))
    if exhausted:
        hints.append("report_exhausted")
    if view is not None and view.status == "cancelled" and (sets["missing"] or sets["cancelled"]):
        hints.append("hold:cancelled_by_operator")
    elif sets["duplicate"] or (unknown and sets["missing"]) or _no_evidence(account):
        hints.append("hold:operator")
    if sets["permanent_failure"] and not hints:
        hints.append("report_permanent")
    return hints


def _reasons(account: Account) -> dict[str, dict[str, Any]]:
    """Why each id is where it is: class, reason, rule, file, line, offset."""
    names = {raw.digest: raw.name for raw in account.raws}
    wanted = account.table.select(
        ["wire_id", "cls", "reason", "rule", "file", "line", "offset"]
    ).to_pylist()
    return {
        row["wire_id"]: {
            "class": row["cls"],
            "reason": row["reason"],
            "rule": row["rule"],
            "file": names.get(row["file"]),
            "line": row["line"],
            "offset": row["offset"],
        }
        for row in wanted
    }
