"""Batches that carry no label of ours (Anthropic): candidates, and proof by their first lines.

An open batch shows only its id, its time and its total (providers.md 2.7). What is newer than the
newest batch before our POST and has our total is a candidate; the tag in its first result lines,
readable once it has ended, is the proof. One line would be enough if none were ever damaged; a
few are read, because a batch wrongly let go is paid for a second time. Nothing of a candidate is
stored before the proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from llm_batch_assets.errors import DownloadError, ProviderError, ResultsGone
from llm_batch_assets.identity import parse_wire_id
from llm_batch_assets.ledger.rows import SubmissionRow
from llm_batch_assets.providers.base import BatchProvider
from llm_batch_assets.types import TERMINAL_STATUSES, BatchView

PROOF_LINES = 20
MAX_PROOF_BYTES = 64 * 2**20
"""No more than this is read for a proof; what is behind it proves nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the candidates of one submission are.

    Attributes:
        proven: ended, and most of their first lines carry our tag: oldest first.
        foreign: ended, and none of their first lines carries it.
        open: not ended, nothing to read yet, or a mixture: nobody can tell.
        later: of those that are open, what a later look may tell: not ended, nothing to read yet,
            or a reading that failed for now.
    """

    proven: tuple[BatchView, ...]
    foreign: tuple[BatchView, ...]
    open: tuple[BatchView, ...]
    later: tuple[BatchView, ...]


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
    """Read the first lines of every candidate that has ended.

    Raises:
        ProviderError: a fault of the account; nothing is concluded.
    """
    proven: list[BatchView] = []
    foreign: list[BatchView] = []
    still: list[BatchView] = []
    later: list[BatchView] = []
    for view in views:
        if view.status not in TERMINAL_STATUSES or not view.results:
            still.append(view)
            later.append(view)
            continue
        try:
            tags = first_tags(view, provider)
        except (ProviderError, DownloadError) as error:
            if isinstance(error, ProviderError) and error.fault == "account":
                raise
            # Gone, or not to be had now: of this one nobody can tell; the others can be judged.
            still.append(view)
            if not isinstance(error, ResultsGone):
                later.append(view)
            continue
        mine = tags.count(row.tag)
        if mine and mine * 2 >= len(tags):
            proven.append(view)
        elif tags and not mine:
            foreign.append(view)
        else:
            still.append(view)
    proven.sort(key=lambda view: (view.created_at is None, view.created_at, view.batch_id))
    return Verdict(tuple(proven), tuple(foreign), tuple(still), tuple(later))


def first_tags(view: BatchView, provider: BatchProvider) -> list[str | None]:
    """The tags of the first result lines that can be read; None for an id that is not ours."""
    tags = []
    with provider.open_result(view.results[0]) as body:
        for line in _first_lines(body.chunks):
            try:
                row = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            found = row.get("custom_id") if isinstance(row, dict) else None
            wire_id = parse_wire_id(found) if isinstance(found, str) else None
            tags.append(None if wire_id is None else wire_id[0])
    return tags


def _first_lines(chunks: Iterator[bytes]) -> list[bytes]:
    kept = bytearray()
    for chunk in chunks:
        kept += chunk
        if kept.count(b"\n") > PROOF_LINES or len(kept) > MAX_PROOF_BYTES:
            break
    return [line for line in bytes(kept).split(b"\n") if line.strip()][:PROOF_LINES]
