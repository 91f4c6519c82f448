"""The fault menu: what can go wrong, how it is asked for, and which call or record it meets.

Three kinds of fault. *Record* faults change what one request line answers, and are chosen by the
body's digest so that a body asked again later answers as its execution number says. *Batch*
faults change one batch's life or its result files. *HTTP* faults meet the n-th call of a route.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

RECORD_KINDS: dict[str, str] = {
    "missing": "executed and good, but no row",
    "duplicate_identical": "the same row twice, byte for byte",
    "duplicate_conflicting": "two different rows for one id",
    "mangled_id": "the row carries an id that nobody sent",
    "unreadable": "the row is cut in the middle of its JSON",
    "error_429": "the row is a rate limit error",
    "error_500": "the row is a server error",
    "error_400": "the row is an invalid request error",
    "error_quota": "the row says that the account's money is used up",
    "refusal": "the model refuses",
    "content_filter": "the answer is stopped by a filter",
    "cut": "the answer is cut at the token limit",
    "invalid_json": "the answer ends normally and is no JSON",
    "schema_violation": "the answer is JSON that breaks the schema",
    "fenced": "the JSON stands in a code fence",
    "empty": "a normal end without any text",
    "nan": "the answer holds a bare NaN",
    "lone_surrogate": "the answer holds half of a surrogate pair",
    "u2028": "a raw U+2028 inside the answer: legal, and good",
    "other_model": "another model than the one asked for has answered",
    "response_failed": "2xx whose body says that the response failed",
}
"""Kinds of record faults and what each does."""

BATCH_KINDS: dict[str, str] = {
    "expire": "runs out of time after `fraction` of its lines",
    "provider_cancel": "cancelled by the provider after `fraction` of its lines",
    "fail": "fails validation with `code` (token_limit_exceeded, billing_hard_limit_reached, …)",
    "unknown_row": "`count` foreign rows in the result file; `source` other_batch or stranger",
    "garbage_line": "`count` lines that are no JSON, besides the real ones",
    "unknown_type": "`count` records end in a way that nobody has heard of",
    "extra_fields": "every row has fields that nobody has heard of, some of them null",
    "long_line": "`count` rows are 16 MB long",
    "bom": "a byte order mark before the first line",
    "crlf": "lines end with CR LF",
    "blank_lines": "empty lines between the rows",
    "no_final_newline": "the last line has no newline",
    "ordered": "rows in request order instead of shuffled",
    "empty_file_id": 'an absent error file is named "" instead of null',
    "late_files": "ended, but for `looks` polls no result file is named",
    "late_list": "not in the list for `looks` lists or `seconds` real seconds after create",
    "lost_result": "result files answer 404",
    "unknown_status": "for `looks` polls an unheard-of status",
    "zero_counts": "counts stay 0 to the end",
    "inline_output": "Gemini: a file job answers inline instead of with a file",
    "no_metadata": "Gemini: inline answers come without their keys",
    "look_alike": "somebody else makes a batch of the same size, window and model just after it",
    "stuck": "never leaves its first status",
}
"""Kinds of batch faults and what each does."""

HTTP_KINDS: dict[str, str] = {
    "drop_after": "the effect happens, the socket closes before the status line",
    "drop_before": "the socket closes, nothing happens",
    "status_after": "the effect happens, `status` is answered (500)",
    "status_before": "nothing happens, `status` is answered (429, with `retry_after`)",
    "delay_after": "the effect happens, no answer for `seconds` real seconds (30)",
    "delay_before": "nothing happens, no answer for `seconds` real seconds (30)",
    "late_effect": "no answer, and the effect only after `seconds` real seconds (3)",
    "html_after": "the effect happens, 200 text/html is answered",
    "html_before": "nothing happens, 200 text/html is answered",
    "truncate_length": "the body is cut at `fraction` of its announced length",
    "truncate_close": "the body is cut at `fraction`, without a length, the socket closes",
    "truncate_line": "as truncate_close, at the end of a line",
    "gzip": "the body is compressed, and says so",
    "gzip_cut": "the body is compressed and cut, with the cut's own length announced",
    "gzip_hidden": "the body is compressed, and nothing says so",
    "status_206": "half of the body with status 206, though nobody asked for a range",
    "status_204": "204 without a body",
    "empty_page": "a list page without data that claims there is more",
    "junk_json": "200 with JSON that is no object of this API",
}
"""Kinds of HTTP faults and what each does."""

ROUTES = (
    "upload",
    "upload_data",
    "file_get",
    "file_list",
    "file_delete",
    "download",
    "create",
    "poll",
    "list",
    "cancel",
    "delete",
)
"""Names of routes, the same for every provider."""


class FaultError(ValueError):
    """A fault that is not on the menu, or a parameter that it does not take."""


@dataclass(slots=True)
class RecordFault:
    """A fault of single records.

    Picks per batch: the larger of ``count`` and ``fraction`` of its lines, until ``total`` are
    picked in all; or exactly ``ids``. Applies to the first ``executions`` executions of a body
    (-1: for ever).
    """

    kind: str
    count: int = 0
    fraction: float = 0.0
    total: int | None = None
    ids: tuple[str, ...] = ()
    executions: int = 1
    provider: str | None = None
    picked: int = 0
    known: set[str] = field(default_factory=set)
    """Bodies picked so far: asked again, they meet the fault again while executions allow."""


@dataclass(slots=True)
class BatchFault:
    """A fault of whole batches: of the ``nth`` made since it was asked for, ``times`` in a row."""

    kind: str
    nth: int = 1
    times: int = 1
    provider: str | None = None
    fraction: float = 0.5
    count: int = 1
    looks: int = 0
    seconds: float = 0.0
    code: str = "token_limit_exceeded"
    source: str = "stranger"
    seen: int = 0


@dataclass(slots=True)
class HttpFault:
    """A fault of the ``nth`` call of a route since it was asked for, ``times`` in a row."""

    route: str
    fault: str
    nth: int = 1
    times: int = 1
    provider: str | None = None
    status: int | None = None
    retry_after: str | None = None
    seconds: float | None = None
    fraction: float = 0.5
    code: str | None = None
    seen: int = 0


Fault = RecordFault | BatchFault | HttpFault


def parse(spec: Mapping[str, Any]) -> Fault:
    """One fault from plain JSON.

    Raises:
        FaultError: It is not on the menu or has a parameter that it does not take.
    """
    if not isinstance(spec, Mapping):
        raise FaultError(f"a fault is an object, not {spec!r}")
    given = dict(spec)
    made: type[Fault]
    if "route" in given:
        made, menu, name = HttpFault, HTTP_KINDS, given.get("fault")
        if given["route"] not in ROUTES:
            raise FaultError(f"unknown route {given['route']!r}: one of {', '.join(ROUTES)}")
    elif given.get("kind") in RECORD_KINDS:
        made, menu, name = RecordFault, RECORD_KINDS, given["kind"]
        given["ids"] = tuple(given.get("ids", ()))
        if not given["ids"] and not given.get("fraction"):
            given.setdefault("count", 1)
    else:
        made, menu, name = BatchFault, {**RECORD_KINDS, **BATCH_KINDS}, given.get("kind")
    if name not in menu:
        raise FaultError(f"unknown fault {name!r}: one of {', '.join(menu)}")
    known = {one.name for one in fields(made)} - {"seen", "picked", "known"}
    unknown = set(given) - known
    if unknown:
        raise FaultError(f"fault {name} takes no {', '.join(sorted(unknown))}")
    if given.get("retry_after") is not None:
        given["retry_after"] = str(given["retry_after"])
    return made(**given)


@dataclass(slots=True)
class FaultBook:
    """The faults in force."""

    records: list[RecordFault] = field(default_factory=list)
    batches: list[BatchFault] = field(default_factory=list)
    http: list[HttpFault] = field(default_factory=list)
    shuffle: bool = True
    met: Counter[str] = field(default_factory=Counter)

    def add(self, specs: Sequence[Mapping[str, Any]]) -> None:
        """Put faults in force; all or none."""
        for fault in [parse(spec) for spec in specs]:
            if isinstance(fault, RecordFault):
                self.records.append(fault)
            elif isinstance(fault, BatchFault):
                self.batches.append(fault)
            else:
                self.http.append(fault)

    def clear(self) -> None:
        """Take every fault out of force. What was planned for existing batches stays."""
        self.records.clear()
        self.batches.clear()
        self.http.clear()

    def for_call(self, provider: str, route: str) -> HttpFault | None:
        """Count a call of a route; the fault that meets it, if any."""
        hit: HttpFault | None = None
        for fault in self.http:
            if fault.route != route or fault.provider not in (None, provider):
                continue
            fault.seen += 1
            if hit is None and fault.nth <= fault.seen < fault.nth + fault.times:
                hit = fault
        if hit is not None:
            self.met[f"{route}:{hit.fault}"] += 1
        return hit

    def for_batch(self, provider: str) -> list[BatchFault]:
        """Count a new batch; the faults that meet it."""
        hits = []
        for fault in self.batches:
            if fault.provider not in (None, provider):
                continue
            fault.seen += 1
            if fault.nth <= fault.seen < fault.nth + fault.times:
                hits.append(fault)
                self.met[fault.kind] += 1
        return hits

    def describe(self) -> dict[str, Any]:
        """What is in force, and how often each was met."""
        return {
            "records": [_plain(fault) for fault in self.records],
            "batches": [_plain(fault) for fault in self.batches],
            "http": [_plain(fault) for fault in self.http],
            "shuffle": self.shuffle,
            "met": dict(self.met),
        }


def _plain(fault: Fault) -> dict[str, Any]:
    return {one.name: getattr(fault, one.name) for one in fields(fault) if one.name != "known"}
