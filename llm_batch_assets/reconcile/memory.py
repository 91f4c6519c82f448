"""Where Arrow takes its memory from while a shard is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def small_pages() -> Iterator[None]:
    """Let Arrow allocate by the C library for a block.

    Its own allocator asks for huge pages, and columns that are built once and given back touch
    every page for the first time: on a machine whose memory is not backed yet (a virtual one, a
    fresh container) zeroing them took as long as all of the reading. What was allocated before
    goes back to where it came from.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
