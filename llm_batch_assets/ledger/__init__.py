"""The ledger: what was intended, what exists at the provider, what was decided."""

from llm_batch_assets.ledger.database import Ledger
from llm_batch_assets.ledger.leases import Lease

__all__ = ["Lease", "Ledger"]
