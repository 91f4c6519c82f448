"""From a URL to a store."""

from __future__ import annotations

from pathlib import Path
from urllib.request import url2pathname

from llm_batch_assets.artifacts.base import ArtifactStore
from llm_batch_assets.errors import InputError
from llm_batch_assets.types import NO_EFFECTS, Effects


def open_store(url: str, *, effects: Effects = NO_EFFECTS) -> ArtifactStore:
    """Open a store, creating its ``store.json`` if there is none yet.

    Args:
        url: ``file:///…``, a plain path, or ``s3://bucket/prefix``. S3 credentials, region and
            endpoint come from the environment, as boto3 reads them.
        effects: hook around every durable write (``store.put``).

    Raises:
        InputError: for another kind of URL, or a place that cannot be used.
        ArtifactError: for a store whose ``store.json`` is damaged.
    """
    if not url.strip():
        raise InputError("The artifact store's URL is empty: write a path or s3://bucket/prefix.")
    if "://" not in url:
        return _local(Path(url), effects)
    # Only cut: a prefix may hold a character that would begin a URL's query or fragment.
    scheme, _, rest = url.partition("://")
    place, _, path = rest.partition("/")
    if scheme == "file":
        if place not in ("", "localhost"):
            raise InputError(f"The artifact store {url!r} names another host: write file:///path.")
        return _local(Path(url2pathname(f"/{path}")), effects)
    if scheme == "s3":
        # boto3 is loaded only by those who ask for it.
        from llm_batch_assets.artifacts.s3 import S3Store

        return S3Store.open(place, path.strip("/"), effects=effects)
    raise InputError(
        f"The artifact store {url!r} has an unknown kind: write a path, file:///… or s3://…."
    )


def _local(path: Path, effects: Effects) -> ArtifactStore:
    from llm_batch_assets.artifacts.local import LocalStore

    return LocalStore(path, effects=effects)
