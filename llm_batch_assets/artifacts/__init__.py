"""Write-once objects named by their own sha256: a local directory or an S3 bucket."""

from __future__ import annotations

from llm_batch_assets.artifacts.base import ArtifactStore, ArtifactWriter
from llm_batch_assets.artifacts.factory import open_store

__all__ = ["ArtifactStore", "ArtifactWriter", "open_store"]
