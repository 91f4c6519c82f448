"""What a team declares once: a workload and its parts."""

from llm_batch_assets.workload.model import Workload
from llm_batch_assets.workload.names import check_dataset_key, is_floating_model
from llm_batch_assets.workload.parts import (
    Admission,
    Backoff,
    Canary,
    Gate,
    Limits,
    Output,
    Prompt,
    Publish,
    Retention,
    Retry,
    Tool,
    Turn,
)

__all__ = [
    "Admission",
    "Backoff",
    "Canary",
    "Gate",
    "Limits",
    "Output",
    "Prompt",
    "Publish",
    "Retention",
    "Retry",
    "Tool",
    "Turn",
    "Workload",
    "check_dataset_key",
    "is_floating_model",
]
