"""Account for one shard: every expected id gets exactly one class, every other row is an anomaly.

Pure: bytes and frozen rules in, tables out. Nothing is accepted that is not in the raw bytes: rows
join by exact id only, and an answer's text is the provider's own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llm_batch_assets.reconcile.collect import Collector
from llm_batch_assets.reconcile.memory import small_pages
from llm_batch_assets.reconcile.model import Account, Expected, RawFile, Rules
from llm_batch_assets.reconcile.tabulate import build
from llm_batch_assets.reconcile.unrowed import rest_rules
from llm_batch_assets.types import TERMINAL_STATUSES, BatchView
from llm_batch_assets.wire.readers import wire_of


def account(
    expected: Expected,
    rules: Rules,
    raws: Sequence[RawFile],
    views: Sequence[BatchView] = (),
) -> Account:
    """Account for one shard.

    Args:
        expected: the shard's ids, in the order of its request file.
        rules: from the frozen manifest.
        raws: result and error files, as received; their order does not matter.
        views: looks at the batch, oldest first. The last one decides whether it is over; none
            (loose files) counts as over.

    Raises:
        InputError: for a schema that does not compile, or ids that repeat.
        LLMBatchError: when the workload's gate fails.
    """
    wire = wire_of(rules.provider)
    view = views[-1] if views else None
    files = [raw for raw in raws if raw.kind != "bedrock_manifest"]
    in_flight = view is not None and (
        view.status not in TERMINAL_STATUSES or (not view.results_ready and not files)
    )
    with _quiet_collector(), small_pages():
        collector = Collector(expected, rules, wire)
        if not in_flight:
            for raw in sorted(files, key=lambda raw: (raw.kind != "results", raw.digest, raw.name)):
                collector.read(raw)
            collector.gate()
        rest = rest_rules(expected, view, wire, in_flight=in_flight, rows=collector.rows_seen)
        return build(collector, expected, rules, view, raws, rest, in_flight)


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """The garbage collector doubles the time of a loop that only builds columns."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
