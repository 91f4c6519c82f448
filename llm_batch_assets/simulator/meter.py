"""What was really executed, and what was paid for twice.

The meter judges clients, so it rests only on what arrived and what was executed: request bodies,
custom ids and batches, in the order of execution.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Label = Literal["good", "failed", "cut", "refused", "withheld"]
LABELS: tuple[Label, ...] = ("good", "failed", "cut", "refused", "withheld")


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one request line.

    ``label`` is what the client can have of it: ``withheld`` was executed and good, but its row
    never reached the result file in a usable form.
    """

    batch: str
    provider: str
    custom_id: str
    body: str
    nth: int
    label: Label
    fault: str | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    foreign: bool


class Meter:
    """Books batches and executions; answers what was paid for twice."""

    def __init__(self) -> None:
        self.executions: list[Execution] = []
        self._times: Counter[str] = Counter()
        self._lines_in_first_batch: dict[str, int] = {}
        self._batches: dict[str, bool] = {}

    def book_batch(self, batch: str, lines: Iterable[tuple[str, str]], *, foreign: bool) -> None:
        """Remember a batch and, for bodies never seen before, how many lines ask for each.

        Args:
            batch: The batch's id.
            lines: (custom_id, sha256 of the body) of each line.
            foreign: The batch belongs to somebody else in the same account.
        """
        self._batches[batch] = foreign
        if foreign:
            return
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for custom_id, body in lines:
            ids[body].add(custom_id)
        for body, names in ids.items():
            self._lines_in_first_batch.setdefault(body, len(names))

    def times(self, body: str) -> int:
        """How often a body was executed so far."""
        return self._times[body]

    def record(self, execution: Execution) -> None:
        """Book one execution."""
        self._times[execution.body] += 1
        self.executions.append(execution)

    def withhold(self, batch: str) -> None:
        """Everything good of a batch is lost: the provider ended it without its results."""
        self.executions = [
            replace(one, label="withheld") if one.batch == batch and one.label == "good" else one
            for one in self.executions
        ]

    def paid_twice(self) -> int:
        """Executions that bought an answer which had been bought already; each counted once.

        Two rules. A good execution of a body beyond the number of distinct custom ids that asked
        for it in the earliest batch that has it. An execution of a custom id after a good one of
        the same id in another batch. Asking again for what failed, was cut, refused or withheld
        is in neither.
        """
        extra = 0
        good_of_body: Counter[str] = Counter()
        good_in: dict[str, str] = {}
        for execution in self.executions:
            if execution.foreign:
                continue
            batch = good_in.get(execution.custom_id)
            again = batch is not None and batch != execution.batch
            paid = again and execution.label != "failed"
            if execution.label == "good":
                allowed = self._lines_in_first_batch.get(execution.body, 1)
                if good_of_body[execution.body] >= allowed:
                    paid = True
                if not paid:
                    good_of_body[execution.body] += 1
                good_in.setdefault(execution.custom_id, execution.batch)
            extra += paid
        return extra

    def summary(self) -> dict[str, Any]:
        """The totals that an acceptance test reads."""
        own = [one for one in self.executions if not one.foreign]
        labels = Counter(one.label for one in own)
        faults = Counter(one.fault for one in own if one.fault)
        return {
            "paid_twice": self.paid_twice(),
            "executions": {label: labels[label] for label in LABELS},
            "total_executions": len(own),
            "distinct_bodies": len({one.body for one in own}),
            "provider_batches": sum(1 for foreign in self._batches.values() if not foreign),
            "foreign_batches": sum(1 for foreign in self._batches.values() if foreign),
            "faults": dict(sorted(faults.items())),
            "tokens": {
                "input": sum(one.input_tokens for one in own),
                "cached_input": sum(one.cached_tokens for one in own),
                "output": sum(one.output_tokens for one in own),
            },
        }

    def listing(self, batch: str | None = None) -> list[dict[str, Any]]:
        """Every execution, or those of one batch, in order."""
        return [asdict(one) for one in self.executions if batch in (None, one.batch)]
