"""The parts of a workload, each frozen, each refusing fields that it does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    field_validator,
    model_validator,
)

from llm_batch_assets.workload.units import Duration, Size, format_duration, parse_duration


class Part(BaseModel):
    """Frozen; unknown fields are errors; no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False
    )


def _money(value: Any) -> Any:
    # YAML gives 200 or 0.1: through text, so that 0.1 stays 0.1.
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return Decimal(str(value))
        except InvalidOperation:
            raise ValueError("write an amount of dollars, such as 200") from None
    return value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Label = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^\S+$")]
"""A version label: short, no spaces."""
Money = Annotated[
    Decimal, BeforeValidator(_money), PlainSerializer(str, return_type=str), Field(gt=0)
]
Fraction = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
Template = Annotated[str, StringConstraints(min_length=1)]


class Turn(Part):
    """One message of a conversation; ``text`` and ``images`` are templates over the columns."""

    role: Literal["user", "assistant"] = "user"
    text: Template
    images: tuple[Template, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _shown_by_users(self) -> Turn:
        if self.images and self.role != "user":
            raise ValueError("only a user's message shows images; remove them")
        return self


class Prompt(Part):
    """What is asked. ``system`` is sent as it is; the rest are templates over the columns.

    Attributes:
        version: label of this wording; the same label never stands for another wording.
        user: one user message; instead of ``messages``.
        images: addresses of images that go with ``user``.
        messages: a whole conversation; instead of ``user``.
        body: with ``body: native``, the template (mostly one column) that gives the JSON body.
    """

    version: Label
    system: Annotated[str, StringConstraints(min_length=1)] | None = None
    user: Template | None = None
    images: tuple[Template, ...] = Field(default=(), strict=False)
    messages: tuple[Turn, ...] = Field(default=(), strict=False)
    body: Template | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Prompt:
        ways = [bool(self.user), bool(self.messages), bool(self.body)]
        if sum(ways) != 1:
            raise ValueError(
                'write exactly one of user: "{{ column }}", messages: [...], '
                'or, with body: native, body: "{{ column }}"'
            )
        if self.images and not self.user:
            raise ValueError("images go with user; inside messages give each message its images")
        return self

    def turns(self) -> tuple[Turn, ...]:
        """The conversation, also where only ``user`` was written."""
        if self.user is not None:
            return (Turn(role="user", text=self.user, images=self.images),)
        return self.messages


class Tool(Part):
    """A function that the model may call; ``schema`` is the JSON Schema of its input."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")

    @field_validator("json_schema")
    @classmethod
    def _valid(cls, value: dict[str, Any]) -> dict[str, Any]:
        return check_json_schema(value)


class Output(Part):
    """What an answer must be.

    Attributes:
        version: label of this contract.
        answer: ``json`` (text under a schema), ``text``, ``tool`` (a tool call's input),
            ``embedding``.
        json_schema: written ``schema``: a JSON Schema (Draft 2020-12); required for ``json`` and
            ``tool``.
        name: what the provider calls the schema or, for ``tool``, the tool.
        strict: ask the provider to enforce the schema; null asks wherever the schema allows it.
    """

    version: Label = "v1"
    answer: Literal["json", "text", "tool", "embedding"] = "json"
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    strict: bool | None = None

    @field_validator("json_schema")
    @classmethod
    def _valid(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else check_json_schema(value)

    @model_validator(mode="after")
    def _fits(self) -> Output:
        wants = self.answer in ("json", "tool")
        if wants and self.json_schema is None:
            raise ValueError(
                f"answer: {self.answer} needs schema: {{type: object, ...}}; "
                "write answer: text for free text"
            )
        if not wants and self.json_schema is not None:
            raise ValueError(f"schema has no meaning with answer: {self.answer}; remove it")
        return self


class Gate(Part):
    """The workload's own rule over a batch of answers, as ``package.module:function``."""

    version: Label
    function: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    ]


class Backoff(Part):
    """How long an attempt waits: ``initial`` times ``factor`` per attempt, at most ``max``."""

    initial: Duration = timedelta(minutes=5)
    factor: Annotated[float, BeforeValidator(_number), Field(ge=1)] = 2.0
    max: Duration = timedelta(hours=6)

    @model_validator(mode="after")
    def _ordered(self) -> Backoff:
        if self.initial > self.max:
            raise ValueError("initial must not be longer than max")
        return self

    def delay(self, attempt: int) -> timedelta:
        """The wait after ``attempt`` (1-based)."""
        seconds = self.initial.total_seconds() * self.factor ** min(attempt - 1, 64)
        return timedelta(seconds=min(seconds, self.max.total_seconds()))


class Retry(Part):
    """How often a record may be charged, and how long others wait for it."""

    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3
    backoff: Backoff = Backoff()
    cut_after: Duration = timedelta(hours=6)
    hold_deadline: Duration = timedelta(hours=72)


class Limits(Part):
    """Sizes of shards and caps on spending; the provider's own limits always hold as well.

    Null means no cap. A day is a day in UTC.

    Attributes:
        records_minimum: fewest records of one batch, where the account has another quota than the
            capability table says (Bedrock: 100 by default, adjustable); null takes the table's.
    """

    records_per_shard: Annotated[int, Field(ge=1)] = 50_000
    records_minimum: Annotated[int, Field(ge=1)] | None = None
    bytes_per_shard: Size = 190_000_000
    open_datasets: Annotated[int, Field(ge=1)] = 3
    records_per_day: Annotated[int, Field(ge=1)] | None = None
    usd_per_day: Money | None = None


class Publish(Part):
    """What must hold before a dataset is published."""

    min_accepted: Fraction = 0.95
    wait_for_review: bool = False
    close_by: Duration = timedelta(hours=72)


class Admission(Part):
    """What the team says about its use; batch processing is refused where it does not fit."""

    latency: Duration = timedelta(hours=24)
    independent_records: bool = True
    idempotent_delivery: bool = True


class Canary(Part):
    """The first shard of a dataset, kept small, whose re-run share decides about the rest."""

    records: Annotated[int, Field(ge=1)] = 200
    max_rerun_fraction: Fraction = 0.2


_AFTER = re.compile(r"after\s+(\S+)")


class Retention(Part):
    """When the provider's copies go: ``keep``, ``after_delivery`` or ``after <duration>``."""

    delete_remote: str = "keep"

    @field_validator("delete_remote")
    @classmethod
    def _known(cls, value: str) -> str:
        if value in ("keep", "after_delivery"):
            return value
        match = _AFTER.fullmatch(value)
        if match is None:
            raise ValueError("write keep, after_delivery, or after and a duration (after 7d)")
        return f"after {format_duration(parse_duration(match[1]))}"

    @property
    def delete_after(self) -> timedelta | None:
        """The wait of ``after <duration>``, else None."""
        match = _AFTER.fullmatch(self.delete_remote)
        return parse_duration(match[1]) if match else None


def check_json_schema(value: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as it is, if it is a JSON Schema (Draft 2020-12) that needs no other document.

    Raises:
        ValueError: naming the place that is wrong.
    """
    import jsonschema_rs

    schema = dict(value)
    try:
        jsonschema_rs.Draft202012Validator(schema, retriever=_no_retrieval)
    except jsonschema_rs.ValidationError as error:
        where = "/".join(map(str, error.instance_path)) or "its root"
        raise ValueError(f"this is no JSON Schema: at {where}, {error.message}") from None
    except (ValueError, TypeError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(f"this is no JSON Schema: {error}") from None
    return schema


def _no_retrieval(uri: str) -> Any:
    # The library would fetch it over the network.
    raise ValueError(f"{uri} is not part of the schema; write it under $defs")
