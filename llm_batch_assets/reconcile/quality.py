"""Is a 2xx answer acceptable? Strict JSON, then the schema, then the workload's own gate.

The stop reason was judged before (a number cut from 1234 to 12 would pass any schema). Nothing is
repaired: fences and prose around JSON, lone surrogates, NaN or repeated keys make an answer
unqualified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from llm_batch_assets.errors import GateFault, InputError
from llm_batch_assets.reconcile.model import Answer, Rules
from llm_batch_assets.reconcile.served import same_model
from llm_batch_assets.wire.classes import ACCEPTED, Rule, answered_badly
from llm_batch_assets.wire.embedding import vector_fault
from llm_batch_assets.wire.strict import Fault, answer, quick_answer, writable

QUALITY = {
    reason: answered_badly(reason)
    for reason in (
        "unparseable",
        "invalid_json",
        "duplicate_key",
        "too_deep",
        "integer_too_long",
        "number_out_of_range",
        "lone_surrogate",
        "empty_answer",
        "answer_too_long",
        "schema",
        "served_model",
        "gate",
        "vector_count",
        "vector_dimension",
        "vector_value",
    )
}
"""Every way in which a 2xx answer with an accepted stop reason is no acceptable answer."""


def compile_schema(schema: Mapping[str, Any] | bool) -> Any:
    """Compile a JSON Schema once, without any network.

    Raises:
        InputError: for a schema that is none, or that refers to another document.
    """
    try:
        return jsonschema_rs.Draft202012Validator(
            schema if isinstance(schema, bool) else dict(schema),
            offline=True,
            validate_formats=False,
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"The output schema does not compile: {first}.") from None


class _Fits(dict[str | bytes | None, bool]):
    """Whether a served model (text, or ASCII bytes) may answer for the asked one; judged once."""

    def __init__(self, asked: str | None) -> None:
        super().__init__({None: True})
        self._asked = asked

    def __missing__(self, served: str | bytes) -> bool:
        name = served.decode("ascii") if isinstance(served, bytes) else served
        fit = self._asked is None or same_model(self._asked, name)
        return self.setdefault(served, fit)


class Judge:
    """Judges answers by one set of rules.

    Attributes:
        fits: served model -> whether it may answer for the asked one.
        quickly: gives the value of most acceptable JSON answers, None for all others; ``valid``
            then says whether the schema accepts it. ``judge`` agrees, up to ``quick_length``.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._valid = None if rules.schema is None else compile_schema(rules.schema).is_valid
        self._json = rules.answer in ("json", "tool") or (
            rules.answer == "auto" and rules.schema is not None
        )
        self._limit = rules.max_answer_bytes
        # The fast lane judges JSON itself, up to a length that no encoding makes too long.
        self.quick_length = self._limit // 4
        self.valid = self._valid or (lambda value: True)
        self.quickly = quick_answer if self._json else None
        self.fits = _Fits(rules.model)

    def judge(self, wire_id: str, text: str, embedding: bool) -> tuple[Rule, Any]:
        """(``ACCEPTED`` or why the answer is not acceptable, its parsed value)."""
        if len(text) * 4 > self._limit and self._too_long(text, embedding):
            return QUALITY["answer_too_long"], None
        if not (embedding or self._json):
            if not text.strip():
                return QUALITY["empty_answer"], None
            return (ACCEPTED, text) if writable(text) else (QUALITY["lone_surrogate"], None)
        try:
            value = answer(text)
        except Fault as fault:
            return QUALITY[fault.reason], None
        if embedding:
            count = self._rules.inputs_per_record
            wanted = count.get(wire_id) if isinstance(count, Mapping) else count
            reason = vector_fault(value, count=wanted, dimensions=self._rules.dimensions)
            if reason is not None:
                return QUALITY[reason], None
        if self._valid is not None and not self._valid(value):
            return QUALITY["schema"], None
        return ACCEPTED, value

    def _too_long(self, text: str, embedding: bool) -> bool:
        limit = self._limit * (8 if embedding else 1)
        return len(text.encode("utf-8", "replace")) > limit

    def gate(self, answers: list[Answer]) -> list[str | None]:
        """The workload's reasons, one per answer.

        Raises:
            GateFault: when the gate itself fails or gives another number of reasons: a fault of
                the gate is no record's outcome (field report B106).
        """
        gate = self._rules.gate
        if gate is None or not answers:
            return [None] * len(answers)
        try:
            reasons = list(gate(answers))
        except Exception as error:
            raise GateFault(
                f"The workload's gate failed: {type(error).__name__}: {error}.",
                remedy="No record was classed; fix the gate under a new gate version.",
            ) from error
        if len(reasons) != len(answers) or not all(
            reason is None or isinstance(reason, str) for reason in reasons
        ):
            raise GateFault(
                f"The workload's gate gave {len(reasons)} reasons for {len(answers)} answers.",
                remedy="A gate gives one string or None per answer.",
            )
        return reasons
