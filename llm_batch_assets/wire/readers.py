"""The four providers' readers by name: pure functions over bytes and mappings, no SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from llm_batch_assets.types import BatchFault, BatchView
from llm_batch_assets.wire.classes import Rule
from llm_batch_assets.wire.lane import Shape
from llm_batch_assets.wire.shapes import Asked, Reader, RowId


@dataclass(frozen=True, slots=True)
class Wire:
    """One provider's side of the wire.

    Attributes:
        row_id: the id of a parsed result line, of whatever type.
        read: parsed line, its bytes and what was asked -> row.
        read_batch: a batch object -> our view of it.
        fault_rule: one entry of a failed batch's errors -> rule.
        unreached: raw statuses that end a batch which did not reach every record: their missing
            ids need no second download (Bedrock's PartiallyCompleted).
        unpromised: our statuses under which a named result may well not exist (a prefix).
        inline_rows: (bytes of an array of job objects, place of one) -> the result lines that the
            object itself carries, or None.
        shape_of: (proven line, what was asked) -> the shape for which it may be the fast lane's
            template; None without a fast lane.
        expires_unstarted: an ``expired`` batch without a row never began: all its ids expired.
    """

    row_id: RowId
    read: Reader
    read_batch: Callable[[Mapping[str, Any]], BatchView]
    fault_rule: Callable[[BatchFault], Rule]
    unreached: frozenset[str] = frozenset()
    expires_unstarted: bool = False
    unpromised: frozenset[str] = frozenset()
    inline_rows: Callable[[bytes, int], bytes | None] | None = None
    shape_of: Callable[[Mapping[str, Any], Asked], Shape | None] | None = None


_LANES = {"openai": "llm_batch_assets.wire.openai.quick"}


def wire_of(provider: str) -> Wire:
    """The readers of one provider: openai, anthropic, gemini or bedrock."""
    rows = import_module(f"llm_batch_assets.wire.{provider}.rows")
    status = import_module(f"llm_batch_assets.wire.{provider}.status")
    return Wire(
        row_id=rows.row_id,
        read=rows.read,
        read_batch=status.read_batch,
        fault_rule=status.fault_rule,
        unreached=getattr(status, "UNREACHED", frozenset()),
        expires_unstarted=getattr(status, "EXPIRES_UNSTARTED", False),
        unpromised=getattr(status, "UNPROMISED", frozenset()),
        inline_rows=getattr(status, "inline_rows", None),
        shape_of=import_module(_LANES[provider]).shape_of if provider in _LANES else None,
    )
