"""What becomes of ids that no row speaks of: the batch's own end decides, never its counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from llm_batch_assets.reconcile.model import Expected
from llm_batch_assets.types import BatchFault, BatchView
from llm_batch_assets.wire.classes import IN_FLIGHT, MISSING, NEVER_STARTED, NOT_REACHED, Rule
from llm_batch_assets.wire.readers import Wire


@dataclass(frozen=True, slots=True)
class Rest:
    """The rule of every id without a row, and of single lines that the provider named.

    The one look-up by line that is allowed: a complaint about line n of a request file whose
    digest is ours.
    """

    rule: Rule
    lines: Mapping[int, tuple[Rule, BatchFault]] = field(default_factory=dict)
    fault: BatchFault | None = None


def rest_rules(
    expected: Expected, view: BatchView | None, wire: Wire, *, in_flight: bool, rows: int
) -> Rest:
    """The rules for ids without a row. A row is evidence, a job's status or count is not.

    Only a batch that failed before it ran, or that never started, classes its ids as a whole.
    """
    if in_flight:
        return Rest(IN_FLIGHT)
    if view is None or rows:
        return Rest(MISSING)
    if view.status == "expired" and wire.expires_unstarted:
        return Rest(NEVER_STARTED)
    if view.status != "failed" or not view.faults:
        return Rest(MISSING)
    named: dict[int, tuple[Rule, BatchFault]] = {}
    whole: list[tuple[Rule, BatchFault]] = []
    for fault in view.faults:
        if fault.line is not None and fault.line > len(expected.wire_ids):
            # A line that our file does not have names nobody.
            fault = replace(fault, line=None)
        rule = wire.fault_rule(fault)
        if fault.line is not None:
            # Several complaints about one line: the gravest counts, then the first.
            if fault.line not in named or _gravity(rule) > _gravity(named[fault.line][0]):
                named[fault.line] = (rule, fault)
        else:
            whole.append((rule, fault))
    if not whole:
        return Rest(NOT_REACHED, named)
    rule, fault = max(whole, key=lambda pair: _gravity(pair[0]))
    return Rest(rule, named, fault)


def _gravity(rule: Rule) -> int:
    if rule.hold is not None:
        return 2
    return 1 if rule.cls == "permanent_failure" else 0
