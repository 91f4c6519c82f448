"""Which capabilities a workload cannot do without."""

from __future__ import annotations

from llm_batch_assets.wire.capabilities import Feature, Refusal, refusals
from llm_batch_assets.workload.model import Workload


def needs(workload: Workload) -> frozenset[Feature]:
    """The features that its requests use; a native body says nothing that we could check."""
    if workload.body == "native":
        return frozenset({"native"})
    found: set[Feature] = {workload.output.answer}
    if workload.tools:
        found.add("tool")
    if workload.cache is not None:
        found.add("cache")
    if any(turn.images for turn in workload.prompt.turns()):
        found.add("image")
    return frozenset(found)


def capability_refusals(workload: Workload, *, loopback: bool) -> list[Refusal]:
    """What stands against sending this workload at all; empty where nothing does.

    Args:
        workload: the declaration.
        loopback: the provider's address is this machine.
    """
    return refusals(
        workload.provider,
        workload.model,
        workload.endpoint,
        needs(workload),
        loopback=loopback,
        allow_untested=workload.allow_untested,
    )


def declared_only(workload: Workload) -> list[str]:
    """Fields that a team has written and that nothing enforces yet, so that nobody relies on them.

    They are kept in the manifest; caps on spending, canaries and admission come later.
    """
    limits = [
        f"limits.{name}"
        for name in ("records_per_day", "usd_per_day")
        if getattr(workload.limits, name) is not None
    ]
    canary = ["canary"] if workload.canary is not None else []
    admission = ["admission"] if "admission" in workload.model_fields_set else []
    return limits + canary + admission
