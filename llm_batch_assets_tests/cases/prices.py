"""The case of the price table: names, rates of nought, and prices that nobody knows."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.costs import (
    Price,
    PriceTable,
    Usage,
    cost_of,
    priced_as,
    require_within,
    total,
)
from llm_batch_assets.errors import GateClosed
from llm_batch_assets_tests.cases.driver import Case


def price_table(case: Case, capsys: Any, tmp_path: Path) -> None:
    """Only a real date is taken off a name, 0 is a price, and no price blocks the budget."""
    given = case.script["table"]
    prices = {
        model: Price(
            Decimal(str(p["in"])),
            Decimal(str(p["out"])),
            Decimal(str(p["cached_in"])),
            Decimal(str(p["batch"])),
        )
        for model, p in given.items()
        if isinstance(p, dict)
    }
    table = PriceTable(prices, date.fromisoformat(given["effective"]))
    usages = [
        Usage(row["model"], row["in"], row["out"], row["cached"]) for row in case.script["rows"]
    ]
    for number, usage in enumerate(usages):
        want = case.want[f"row_{number}"]
        cost = cost_of(usage, table)
        assert (cost is not None) == want["known"]
        assert cost is None or cost == Decimal(str(want["cost"]))
        assert priced_as(usage.model, table) == want.get("priced_as")
    with pytest.raises(GateClosed, match=usages[1].model):
        require_within(total(usages, table), Decimal(1))
    require_within(total(usages[:1], table), Decimal(0))
    for name in ("gpt-4o-mini-2024-13-40", "gpt-4o-mini-20240718x", "gpt-4o-mini-1"):
        assert priced_as(name, table) is None
    assert priced_as("gpt-4o-mini-20240718", table) == "gpt-4o-mini"
    # The batch discount is part of the price: 1M in and out is half of 0.75.
    assert cost_of(Usage("gpt-4o-mini", 10**6, 10**6), table) == Decimal("0.375")
