"""The nine blocking checks on ``reconciled_records``, from one op that reads one report."""

# No `from __future__ import annotations`: Dagster reads the context's annotation as it stands.
import os
import warnings
from collections.abc import Iterator

import dagster as dg

from llm_batch_assets.defs import keys
from llm_batch_assets.defs.failures import failures, require_one_partition
from llm_batch_assets.defs.resources import LLMBatchResource
from llm_batch_assets.workload import Workload

DESCRIPTIONS = {
    "no_missing": "No record is without a result line and without a resolution.",
    "no_unknown": "No result row with a foreign id is without a resolution.",
    "no_duplicate": "No conflicting duplicate is without a resolution.",
    "sets_cover_manifest": "The sets are disjoint and cover exactly the manifest's ids.",
    "nothing_open": "Every record has a terminal state.",
    "output_contract": "Every accepted answer, read again from the candidate, fits its schema.",
    "quality_gate": "The manifest's gate judged every shard, and passes the candidate again.",
    "served_model": "Accepted answers come from the model that was asked.",
    "accepted_fraction": "At least publish.min_accepted of the records are accepted.",
}


def partitioned_by_default() -> bool:
    """Whether checks are partitioned: Dagster's preview API, ``LLM_BATCH_PARTITIONED_CHECKS=0``
    turns it off. The guard inside ``accepted_results`` holds either way.
    """
    return os.environ.get("LLM_BATCH_PARTITIONED_CHECKS", "1") != "0"


def blocking_checks(
    workload: Workload, datasets: dg.PartitionsDefinition, *, partitioned: bool
) -> dg.AssetChecksDefinition:
    """Nine specs, one op: one report is read, and all results are recorded before it fails."""
    asset = keys.asset_key(workload.name, keys.RECONCILED)
    with warnings.catch_warnings():
        # Said once in the docstring of `build_llm_batch_assets`, not nine times at each load.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        specs = [
            dg.AssetCheckSpec(
                name,
                asset=asset,
                description=DESCRIPTIONS[name],
                blocking=True,
                partitions_def=datasets if partitioned else None,
            )
            for name in keys.CHECKS
        ]

    @dg.multi_asset_check(name=f"{workload.name}__checks", specs=specs)
    def checks(
        context: dg.AssetCheckExecutionContext, llm_batch: LLMBatchResource
    ) -> Iterator[dg.AssetCheckResult]:
        from llm_batch_assets.defs.report import load_report
        from llm_batch_assets.defs.verdicts import verdicts
        from llm_batch_assets.ledger.accounting import withhold

        dataset = require_one_partition(context)
        with failures(), llm_batch.open(run=context.run) as deps:
            report = load_report(workload, dataset, deps)
            found = verdicts(report)
            needs_person = [v for v in found if not v.passed and not v.planned]
            if report.row.closed_at is not None and needs_person:
                # The publishing step will not run: this closure is tried once, not at every tick.
                reason = f"{needs_person[0].name}: {needs_person[0].text}"
                withhold(deps.ledger, report.row, reason)
        for verdict in found:
            yield dg.AssetCheckResult(
                passed=verdict.passed,
                asset_key=asset,
                check_name=verdict.name,
                severity=(
                    dg.AssetCheckSeverity.WARN if verdict.planned else dg.AssetCheckSeverity.ERROR
                ),
                description=verdict.text,
                metadata={
                    "dataset": dg.MetadataValue.text(dataset),
                    "closure": dg.MetadataValue.text(report.row.closure_digest or ""),
                    "count": verdict.count,
                    "records": dg.MetadataValue.text(", ".join(verdict.records)),
                    **verdict.facts,
                },
            )

    return checks
