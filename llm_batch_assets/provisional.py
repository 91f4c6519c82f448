"""Batches that carry no label of ours (Anthropic): candidates, and proof by the first line.

An open batch shows only its id, its time and its total (providers.md 2.7). What is newer than the
newest batch before our POST and has our total is a candidate; the tag in its first result line,
readable once it has ended, is the proof. Nothing of a candidate is stored before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from llm_batch_assets.identity import parse_wire_id
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.types import TERMINAL_STATUSES, BatchView

MAX_FIRST_LINE = 64 * 2**20
"""A first line longer than this proves nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the candidates of one submission are.

    Attributes:
        proven: ended, and their first line carries our tag: oldest first.
        foreign: ended, and their first line carries another's.
        open: not ended, or nothing to read yet: nobody can tell.
    """

    proven: tuple[BatchView, ...]
    foreign: tuple[BatchView, ...]
    open: tuple[BatchView, ...]


def newest(provider: BatchProvider) -> str | None:
    """The account's newest batch, from the first page of its list; None in an empty account.

    Raises:
        ProviderError: the page could not be read.
    """
    first = next(iter(provider.list_batches()), None)
    return None if first is None else first.batch_id


def candidates(
    row: SubmissionRow,
    listing: Sequence[BatchView],
    *,
    ours: frozenset[str],
    rejected: frozenset[str],
) -> list[BatchView]:
    """What may be this submission's batch.

    Args:
        row: the submission whose create was not answered.
        listing: the account's list, newest first, as one walk gave it.
        ours: batches that are known to be another submission's of this ledger.
        rejected: candidates that were proven to be another's.
    """
    found = []
    for view in listing:
        if view.batch_id == row.fence:
            break
        if view.counts.total != row.records:
            continue
        if view.batch_id not in ours and view.batch_id not in rejected:
            found.append(view)
    return found


def judge(views: Sequence[BatchView], row: SubmissionRow, provider: BatchProvider) -> Verdict:
    """Read the first line of every candidate that has ended.

    Raises:
        ProviderError, DownloadError: a result file could not be opened; nothing is concluded.
    """
    proven: list[BatchView] = []
    foreign: list[BatchView] = []
    still: list[BatchView] = []
    for view in views:
        if view.status not in TERMINAL_STATUSES or not view.results:
            still.append(view)
            continue
        tag = first_tag(view, provider)
        (proven if tag == row.tag else foreign).append(view)
    proven.sort(key=lambda view: (view.created_at is None, view.created_at, view.batch_id))
    return Verdict(tuple(proven), tuple(foreign), tuple(still))


def first_tag(view: BatchView, provider: BatchProvider) -> str | None:
    """The tag of the first result line, or None where the line carries none of ours."""
    with provider.open_result(view.results[0]) as body:
        line = _first_line(body.chunks)
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = row.get("custom_id") if isinstance(row, dict) else None
    wire_id = parse_wire_id(found) if isinstance(found, str) else None
    return None if wire_id is None else wire_id[0]


def _first_line(chunks: Iterator[bytes]) -> bytes:
    kept = bytearray()
    for chunk in chunks:
        head, newline, _ = chunk.partition(b"\n")
        kept += head
        if (newline and kept.strip()) or len(kept) > MAX_FIRST_LINE:
            break
    return bytes(kept).removeprefix(b"\xef\xbb\xbf")
