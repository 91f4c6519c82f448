"""What tokens cost, from a dated price table, and how far a cache helps. Pure; money is Decimal.

An unknown price is unknown, never 0: a budget that cannot be computed is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Final

from llm_batch_assets.errors import GateClosed

MILLION: Final = Decimal(1_000_000)

CACHE_HITS_UNTIL_MEASURED: Final = Decimal("0.30")
"""Share of the marked tokens that a batch reads from the cache, for estimates. Hits in a batch are
best effort, 30 to 98 % are typical (Anthropic, batch processing guide): the careful end."""

_DATED = re.compile(r"(?P<name>.+)-(?P<y>20\d\d)-?(?P<m>\d\d)-?(?P<d>\d\d)")


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens.

    Attributes:
        cached_input: of input read from a cache; None where that costs what input costs. A price
            of 0 is a price.
        batch: what batch processing multiplies the whole with.
    """

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    batch: Decimal = Decimal(1)


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by model name, as of a day."""

    prices: Mapping[str, Price] = field(repr=False)
    effective: date


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or many records; cached ones are part of the input."""

    model: str
    input: int
    output: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What is known of a sum: ``unpriced`` names the models that the table does not have."""

    known: Decimal
    unpriced: frozenset[str] = frozenset()

    @property
    def complete(self) -> bool:
        """Whether the sum is the whole of it."""
        return not self.unpriced


def priced_as(model: str, table: PriceTable) -> str | None:
    """The table's name for a model: its own, or without a real trailing date; None for neither.

    ``gpt-4o-mini-tts`` is not ``gpt-4o-mini``: only a date is taken off.
    """
    if model in table.prices:
        return model
    match = _DATED.fullmatch(model)
    if match is None or match["name"] not in table.prices:
        return None
    try:
        date(int(match["y"]), int(match["m"]), int(match["d"]))
    except ValueError:
        return None
    return match["name"]


def cost_of(usage: Usage, table: PriceTable) -> Decimal | None:
    """Dollars, or None where the price is not known."""
    name = priced_as(usage.model, table)
    if name is None:
        return None
    price = table.prices[name]
    cached = price.input if price.cached_input is None else price.cached_input
    fresh = Decimal(usage.input - usage.cached) * price.input
    rest = Decimal(usage.cached) * cached + Decimal(usage.output) * price.output
    return (fresh + rest) * price.batch / MILLION


def total(usages: Iterable[Usage], table: PriceTable) -> Cost:
    """The sum of what is known, and the models whose part is not."""
    known, unpriced = Decimal(0), set()
    for usage in usages:
        cost = cost_of(usage, table)
        if cost is None:
            unpriced.add(usage.model)
        else:
            known += cost
    return Cost(known, frozenset(unpriced))


def require_within(cost: Cost, limit: Decimal) -> None:
    """The budget's gate.

    Raises:
        GateClosed: over the limit, or something has no price: nobody knows then.
    """
    if not cost.complete:
        raise GateClosed(
            f"No price is known of {', '.join(sorted(cost.unpriced))}.",
            remedy="The budget is blocked until the price table has it.",
        )
    if cost.known > limit:
        raise GateClosed(f"{cost.known} dollars are over the limit of {limit}.")


def cache_hits(usage: Mapping[str, int | None]) -> Decimal | None:
    """The measured share of marked tokens that were read, not written; None without any.

    Args:
        usage: of a job's closure: ``cached_input_tokens`` and ``cache_write_tokens``.
    """
    read, written = usage.get("cached_input_tokens") or 0, usage.get("cache_write_tokens") or 0
    return Decimal(read) / Decimal(read + written) if read + written else None


def expected_hits(measured: Decimal | None) -> Decimal:
    """The share to estimate with: what was measured, and a careful guess until then."""
    return CACHE_HITS_UNTIL_MEASURED if measured is None else measured
