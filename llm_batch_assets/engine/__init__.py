"""``execute(work, deps)``: takes the lease, wires ledger, store and provider; one function a kind.

The command line and Dagster are two thin callers of the same functions.
"""

from llm_batch_assets.deps import Deps
from llm_batch_assets.engine.execute import execute, plan, submit_next
from llm_batch_assets.engine.freezing import freeze
from llm_batch_assets.engine.opening import open_deps
from llm_batch_assets.engine.outcome import Outcome

__all__ = ["Deps", "Outcome", "execute", "freeze", "open_deps", "plan", "submit_next"]
