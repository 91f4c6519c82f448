"""The rules that give each record of a revision its state, in the order in which they are asked.

Everything here is arrays: one entry per manifest id. ``Ruling`` hands out states; the first rule
that fits a record wins, and a record that no rule fits is an error, never a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from llm_batch_assets.errors import LLMBatchError

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

State = Literal["accepted", "permanent_failure", "human_review", "cancelled", "open"]
Next = Literal["retry", "hold", "refetch", "wait"]

STATES: Final[tuple[State, ...]] = get_args(State)
NEXT: Final[tuple[Next, ...]] = get_args(Next)

CLASSES: Final = (
    "succeeded",
    "retryable",
    "permanent_failure",
    "cancelled",
    "expired",
    "missing",
    "duplicate",
)

SETTLE_VERSION = "2"
"""Version of the rules below. A published closure keeps the version that it was settled under.

2: what is missing counts towards ``max_attempts``; rows without an id make what is missing beside
them ``mangled_ids``; ``reshape``; a hold without evidence ends at its deadline.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the frozen manifest says about sending again.

    Attributes:
        max_attempts: in how many attempts a record may be charged, or missing: nobody can tell
            whether that was paid for.
        deterministic: temperature 0 or a fixed seed: the same question gets the same answer.
        max_uncharged: in how many attempts a record may execute nothing, before a person looks.
        minimum: fewest records that the provider runs a batch for.
    """

    max_attempts: int
    deterministic: bool = False
    max_uncharged: int = 20
    minimum: int = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """What evidence and facts say about each record; the arrays have one entry per record.

    ``cls`` is the class of the newest evidence (index in ``CLASSES``, -1 for none).
    """

    accepted: Mask
    preflight: Mask
    decided: Ints
    """State that a person decided (index in ``STATES``), -1 for none."""
    in_flight: Mask
    gone: Mask
    cls: Ints
    unqualified_now: Mask
    confirmed: Mask
    foreign: Mask
    """The shard of the newest evidence has rows that are no record's."""
    person_cancel: Mask
    held: Mask
    deadline_over: Mask
    charged: Ints
    """Attempts in which it was answered or paid for, or may have been: ``missing`` counts."""
    uncharged: Ints
    """Attempts that certainly executed nothing for it."""
    unqualified: Ints
    released: Mask | None = None
    """A person released the shard that the record was last sent in."""
    reshape: Mask | None = None
    """Its last batch was refused for its shape: sent again unchanged it is refused again."""
    abandoned: Mask | None = None
    """That shard was given up before there was evidence of it."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts about the whole revision."""

    close_by_passed: bool = False
    budget_used_up: bool = False


class Ruling:
    """States, next steps and rules as they are handed out."""

    def __init__(self, records: int) -> None:
        self.state = np.full(records, -1, np.int8)
        self.next = np.full(records, -1, np.int8)
        self.rule = np.full(records, -1, np.int16)
        self.retry = np.full(records, -1, np.int16)
        self.words: list[str] = []
        """Names of rules and of reasons to send again; ``rule`` and ``retry`` point here."""

    def give(
        self, who: Mask, state: State, rule: str, next: Next | None = None, retry: str | None = None
    ) -> None:
        """Give a state to whoever fits and has none yet."""
        mine = who & (self.state < 0)
        self.state[mine] = STATES.index(state)
        self.rule[mine] = self._word(rule)
        if next is not None:
            self.next[mine] = NEXT.index(next)
        if retry is not None:
            self.retry[mine] = self._word(retry)

    def _word(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)


def rule(standing: Standing, policy: Policy, facts: Circumstances) -> Ruling:
    """Give every record exactly one state.

    Raises:
        LLMBatchError: when a record fits no rule: our fault, and nothing may rest on it.
    """
    s, ruling = standing, Ruling(len(standing.cls))
    give = ruling.give
    is_class = {name: s.cls == code for code, name in enumerate(CLASSES)}
    missing, duplicate = is_class["missing"], is_class["duplicate"]

    # The first accepted answer stands, whatever comes later.
    give(s.accepted, "accepted", "accepted")
    give(s.preflight, "permanent_failure", "preflight")
    for code, state in enumerate(STATES[:4]):
        give(s.decided == code, state, "decision")
    # What has been sent again has no standing but "in flight" until its shard is accounted.
    if s.released is not None and not facts.close_by_passed:
        # Not after a cancel: nothing is sent again, so it would be open for ever.
        give(s.gone & s.released & ~s.person_cancel, "open", "retry", "retry", "results_gone")
    over = s.gone if facts.close_by_passed else s.gone & s.deadline_over
    give(over, "human_review", "results_gone")
    give(s.gone, "open", "results_gone", "hold")
    if s.abandoned is not None:
        # Held past its deadline without evidence, or given up by a person's own word.
        give(s.in_flight & s.abandoned & s.deadline_over, "human_review", "held_too_long")
        give(s.in_flight & s.abandoned, "human_review", "abandoned")
    give(s.in_flight, "open", "in_flight", "wait")
    give(is_class["permanent_failure"], "permanent_failure", "permanent_failure")

    # A copy that nothing confirms moves no record and no money.
    unsure = (missing | duplicate) & ~s.confirmed
    give(unsure & s.deadline_over, "human_review", "unconfirmed")
    if s.released is not None and not facts.close_by_passed:
        # A person looked where the provider says nothing at all, not even why it failed.
        give(unsure & missing & s.released & ~s.person_cancel, "open", "retry", "retry", "missing")
    give(unsure, "open", "unconfirmed", "refetch")
    give(duplicate, "human_review", "conflicting_duplicate")
    give(missing & s.foreign, "human_review", "mangled_ids")
    give((is_class["cancelled"] | missing) & s.person_cancel, "cancelled", "person_cancel")

    # Caps come before a hold: waiting longer would not give another attempt.
    bad = s.unqualified_now
    give(bad & (s.unqualified >= 2), "human_review", "unqualified_twice")
    give(bad & policy.deterministic, "human_review", "unqualified_deterministic")
    give(s.charged >= policy.max_attempts, "human_review", "exhausted")
    if s.reshape is not None:
        give(s.reshape, "human_review", "reshape")
    give(s.uncharged >= policy.max_uncharged, "human_review", "uncharged_attempts")

    give(s.person_cancel, "cancelled", "person_cancel")
    give(s.held & s.deadline_over, "human_review", "hold_deadline")
    if facts.close_by_passed:
        give(s.cls >= 0, "human_review", "close_by")
    give(s.held, "open", "hold", "hold")
    if facts.budget_used_up:
        give(s.cls >= 0, "human_review", "budget")
    for who, why in (
        (bad, "unqualified"),
        (is_class["retryable"], "retryable"),
        (is_class["expired"], "expired"),
        (missing, "missing"),
        (is_class["cancelled"], "batch_cancelled"),
    ):
        give(who, "open", "retry", "retry", why)
    _too_few(ruling, policy.minimum)

    if (ruling.state < 0).any():
        raise LLMBatchError(f"{int((ruling.state < 0).sum())} records fit no rule of settlement.")
    return ruling


def _too_few(ruling: Ruling, minimum: int) -> None:
    """Keep back a next attempt that its provider would never run (field notes B25).

    While something else of the revision is open, it may bring more records to send with these;
    afterwards nothing will, and a person has them: in a new revision they are asked again.
    """
    again = ruling.next == NEXT.index("retry")
    if not 0 < int(again.sum()) < minimum:
        return
    others = bool(((ruling.state == STATES.index("open")) & ~again).any())
    ruling.state[again] = -1
    ruling.next[again] = ruling.retry[again] = -1
    if others:
        ruling.give(again, "open", "below_minimum", "wait")
    else:
        ruling.give(again, "human_review", "below_minimum")
