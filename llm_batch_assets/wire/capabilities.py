"""What each provider offers, as data: ``capabilities.toml``, and what follows for one job."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from llm_batch_assets.types import ProviderName

Feature = Literal["json", "text", "tool", "embedding", "image", "cache", "native", "pinned"]
FEATURES: tuple[Feature, ...] = get_args(Feature)

_LIMITS = frozenset(
    {"records", "bytes", "inputs", "minimum", "response_bytes", "result_file_bytes"}
)
_KEYS = frozenset(
    {
        "provider",
        "model",
        "endpoint",
        "limits",
        "features",
        "learned_from",
        "learned_on",
        "last_tested",
    }
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table.

    Attributes:
        model: a shell glob over the whole model name.
        limits: of one batch; a name that is absent is not limited here.
        learned_from: where it was read; ``learned_on`` when.
        last_tested: the day of a recorded live canary, or None.
    """

    provider: ProviderName
    model: str
    endpoint: str
    features: frozenset[Feature]
    learned_from: str
    learned_on: date
    limits: Mapping[str, int] = field(default_factory=dict)
    last_tested: date | None = None

    def fits(self, provider: str, model: str, endpoint: str) -> bool:
        """Whether this row speaks of that model at that endpoint."""
        return (
            self.provider == provider
            and self.endpoint == endpoint
            and fnmatchcase(model, self.model)
        )

    def records_for_results(self) -> int | None:
        """Most records whose results stay within the result file we plan for, or None."""
        each, whole = self.limits.get("response_bytes"), self.limits.get("result_file_bytes")
        return None if each is None or whole is None else max(1, whole // each)

    def title(self) -> str:
        """The row's place in the table, for people."""
        return f"{self.provider} {self.model} {self.endpoint}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job must not be sent, in one sentence that names the alternatives."""

    feature: str
    sentence: str


def read_cells(text: str) -> tuple[Cell, ...]:
    """The rows of a capability table.

    Raises:
        ValueError: a row with an unknown or missing field.
    """
    return tuple(_cell(row) for row in tomllib.loads(text)["cell"])


def _cell(row: Mapping[str, Any]) -> Cell:
    strange = (row.keys() - _KEYS) | (row.get("limits", {}).keys() - _LIMITS)
    strange |= set(row.get("features", ())) - set(FEATURES)
    if strange:
        raise ValueError(f"Unknown in a capability cell: {sorted(strange)[0]}.")
    missing = _KEYS - row.keys() - {"last_tested"}
    if missing:
        raise ValueError(f"Missing in a capability cell: {sorted(missing)[0]}.")
    if row["provider"] not in get_args(ProviderName):
        raise ValueError(f"Unknown provider in a capability cell: {row['provider']}.")
    return Cell(**{**row, "features": frozenset(row["features"])})


@cache
def cells() -> tuple[Cell, ...]:
    """The table that ships with the package."""
    return read_cells(files(__package__).joinpath("capabilities.toml").read_text("utf-8"))


def find(
    provider: str, model: str, endpoint: str, table: Collection[Cell] | None = None
) -> Cell | None:
    """The first row that fits, or None where nothing is known."""
    for cell in cells() if table is None else table:
        if cell.fits(provider, model, endpoint):
            return cell
    return None


def refusals(
    provider: ProviderName,
    model: str,
    endpoint: str,
    needs: Collection[Feature],
    *,
    loopback: bool,
    allow_untested: bool,
    table: Collection[Cell] | None = None,
) -> list[Refusal]:
    """Everything that stands against a job, each with what would do instead.

    A need is never dropped to get a job through.

    Args:
        provider: of the job; with ``model`` and ``endpoint`` it names the row.
        model: exact name.
        endpoint: as in a workload.
        needs: features that the job cannot do without.
        loopback: the provider's address is this machine: nothing real is at stake.
        allow_untested: the team accepts a row without a recorded live test.
        table: rows to use instead of the package's own.
    """
    rows = cells() if table is None else tuple(table)
    cell = find(provider, model, endpoint, rows)
    if cell is None:
        known = [row.title() for row in rows if row.provider == provider]
        return [
            Refusal(
                "endpoint",
                f"Nothing is known of {provider} {model} at {endpoint}; known are: "
                f"{'; '.join(known)}.",
            )
        ]
    found = []
    for need in sorted(set(needs) - cell.features):
        others = [row.title() for row in rows if need in row.features]
        # The same provider first: the cheapest change.
        others.sort(key=lambda title: not title.startswith(f"{provider} "))
        found.append(
            Refusal(
                need,
                f"{provider} {model} at {endpoint} does not offer {_WORDS[need]}; these do: "
                f"{'; '.join(others)}.",
            )
        )
    if cell.last_tested is None and not loopback and not allow_untested:
        found.append(
            Refusal(
                "untested",
                f"{cell.title()} has no recorded live test; write allow_untested: true, or use a "
                "row that has one (llm-batch-assets capabilities).",
            )
        )
    return found


_WORDS: dict[Feature, str] = {
    "json": "answers under a JSON schema",
    "text": "text answers",
    "tool": "tool calls",
    "embedding": "embeddings",
    "image": "images by reference",
    "cache": "prompt-cache blocks",
    "native": "native bodies",
    "pinned": "names that do not move",
}
