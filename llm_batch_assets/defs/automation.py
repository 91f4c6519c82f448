"""When downstream assets wake: by what was published, never by a repeat of it."""

from __future__ import annotations

import dagster as dg

from llm_batch_assets.defs.keys import ACCEPTED, STEP_TAG

PUBLISHED = dg.AssetSelection.tag(STEP_TAG, ACCEPTED)


def on_published() -> dg.AutomationCondition:
    """A ready automation condition: run when a new version of ``accepted_results`` is published.

    ``AutomationCondition.eager()`` never fires for a daily partition that is not the newest, and
    fires again for a materialization that repeats the same version. This one compares data
    versions, so any partition wakes, once per version.

    Example:
        .. code-block:: python

            @dg.asset(
                ins={"accepted": dg.AssetIn(["docstring_summaries", "accepted_results"])},
                partitions_def=partitions,
                automation_condition=on_published(),
            )
            def topics(accepted: pd.DataFrame) -> pd.DataFrame: ...
    """
    changed = dg.AutomationCondition.any_deps_match(
        dg.AutomationCondition.data_version_changed()
    ).allow(PUBLISHED)
    return (changed.since_last_handled() & ~dg.AutomationCondition.in_progress()).with_label(
        "on_published"
    )


automation_sensor = dg.AutomationConditionSensorDefinition(
    "llm_batch_automation",
    # What lies downstream of a published table, and nothing else of the location.
    target=PUBLISHED.downstream(include_self=False),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=1,
    description="Wakes what waits on_published() for new versions of accepted_results.",
)
