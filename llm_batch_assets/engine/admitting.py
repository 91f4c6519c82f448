"""Admission: what stands against sending a workload at all, asked where a dataset is frozen."""

from __future__ import annotations

from llm_batch_assets.deps import Deps
from llm_batch_assets.errors import GateClosed
from llm_batch_assets.workload import Workload
from llm_batch_assets.workload.needs import capability_refusals


def admit(workload: Workload, deps: Deps) -> None:
    """Refuse a workload whose provider, model and endpoint do not offer what it needs.

    Nothing that a workload asks for is dropped to get it through.

    Raises:
        GateClosed: each refusal with what would do instead; nothing was written.
    """
    found = capability_refusals(workload, loopback=workload.provider in deps.loopback)
    if found:
        raise GateClosed(
            f"{workload.name} is not admitted: " + " ".join(one.sentence for one in found),
            remedy="Nothing was frozen.",
        )
