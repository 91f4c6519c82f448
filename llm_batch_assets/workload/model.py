"""The workload: one frozen declaration, from Python or from YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from llm_batch_assets import identity
from llm_batch_assets.errors import InputError, WorkloadError
from llm_batch_assets.types import ProviderName
from llm_batch_assets.wire.ask import Ask, ToolSpec, request_module
from llm_batch_assets.workload.names import is_floating_model
from llm_batch_assets.workload.parts import (
    Admission,
    Canary,
    Gate,
    Limits,
    Output,
    Part,
    Prompt,
    Publish,
    Retention,
    Retry,
    Tool,
)

_ENDPOINT_OF_PROVIDER: dict[str, str] = {
    "openai": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "generateContent",
    "bedrock": "Converse",
}

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")

Column = Annotated[str, StringConstraints(min_length=1)]


class Workload(Part):
    """What a team declares once. The workload is the operation; ``examples`` shows every field.

    Attributes:
        endpoint: OpenAI's URL path; ``/v1/messages``; ``generateContent`` or ``embedContent``;
            ``Converse`` or ``InvokeModel``. Left out: the provider's usual one.
        business_key: the column, or columns, that name a source record.
        source_version: the column with the version of a source record, or null for none.
        generation: settings under neutral names (``max_output_tokens``, ``temperature``, …); other
            names go to the provider as they are.
        body: ``native``: each record brings its own request body (``prompt.body``).
        cache: lifetime of prompt-cache blocks (Anthropic only).
        reuse: which accepted answers are carried over by (record_id, request_digest).
        salt: changes every record id on purpose.

    Raises:
        WorkloadError: for anything that does not validate; the message names the field and what
            to write.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
    tenant_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    provider: ProviderName
    model: Annotated[str, StringConstraints(min_length=1, max_length=2048, pattern=r"^[!-~]+$")]
    endpoint: Annotated[str, StringConstraints(pattern=r"^[!-~]+$")] = ""
    allow_floating_model: bool = False
    allow_untested: bool = False
    business_key: Column | Annotated[tuple[Column, ...], Field(min_length=1, strict=False)]
    source_version: Column | None = None
    salt: str | None = None
    prompt: Prompt
    generation: dict[str, Any] = Field(default_factory=dict)
    tools: tuple[Tool, ...] = Field(default=(), strict=False)
    body: Literal["native"] | None = None
    cache: Literal["5m", "1h"] | None = None
    output: Output
    gate: Gate | None = None
    retry: Retry = Retry()
    limits: Limits = Limits()
    publish: Publish = Publish()
    reuse: Literal["never", "dataset", "workload"] = "dataset"
    admission: Admission = Admission()
    canary: Canary | None = None
    retention: Retention = Retention()
    cost_center: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise WorkloadError(_explain(error)) from None

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any], source: str = "workload") -> Workload:
        """A workload from parsed YAML or a component's attributes; ``source`` starts messages."""
        try:
            return cls(**dict(fields))
        except WorkloadError as error:
            raise WorkloadError(f"{source}: {error}") from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Workload:
        """A workload from a YAML file.

        Raises:
            WorkloadError: the file cannot be read, is no YAML mapping, or does not validate.
        """
        from llm_batch_assets.workload.yaml_file import read_mapping

        return cls.from_mapping(read_mapping(Path(path)), str(path))

    @model_validator(mode="before")
    @classmethod
    def _default_endpoint(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("endpoint") in (None, ""):
            provider, output = fields.get("provider"), fields.get("output")
            answer = (
                output.get("answer")
                if isinstance(output, Mapping)
                else getattr(output, "answer", None)
            )
            if provider in _ENDPOINT_OF_PROVIDER:
                endpoint: str | None = _ENDPOINT_OF_PROVIDER[str(provider)]
                if answer == "embedding":
                    endpoint = request_module(provider).EMBEDDING_ENDPOINT or endpoint
                elif provider == "bedrock" and (answer == "tool" or fields.get("tools")):
                    endpoint = "InvokeModel"
                return {**fields, "endpoint": endpoint}
            return {name: value for name, value in fields.items() if name != "endpoint"}
        return fields

    @model_validator(mode="after")
    def _whole(self) -> Workload:
        if is_floating_model(self.model) and not self.allow_floating_model:
            raise WorkloadError(
                f"model: {self.model!r} may mean another model tomorrow; write a name with a date "
                "or a numbered revision, or allow_floating_model: true."
            )
        columns = self.key_columns
        if len(set(columns)) != len(columns):
            raise WorkloadError("business_key: a column is named twice; write each once.")
        if self.cache is not None and self.provider != "anthropic":
            raise WorkloadError("cache: only anthropic has cache blocks; remove it.")
        if len({tool.name for tool in self.tools}) != len(self.tools):
            raise WorkloadError("tools: two tools share a name; rename one.")
        if (self.body == "native") != (self.prompt.body is not None):
            raise WorkloadError(
                'body: write body: native together with prompt.body: "{{ column }}", or neither.'
            )
        self._check_generation()
        self._check_templates()
        if self.body == "native":
            self._check_native()
        else:
            module = request_module(self.provider)
            known = getattr(module, "BATCH_ENDPOINTS", module.ENDPOINTS)
            if self.endpoint not in known:
                raise WorkloadError(f"endpoint: write one of {', '.join(module.ENDPOINTS)}.")
            module.encoder(self.ask())
        return self

    def _check_generation(self) -> None:
        if _CONTROL.search(self.prompt.system or ""):
            raise WorkloadError(
                "prompt.system: holds a control character that providers refuse; remove it."
            )
        for field, value in (
            ("generation", self.generation),
            ("output.schema", self.output.json_schema),
            ("prompt.system", self.prompt.system),
            ("tools", [tool.json_schema for tool in self.tools]),
        ):
            try:
                identity.canonical_json(value)
            except InputError as error:
                raise WorkloadError(f"{field}: {error}") from None

    def _check_templates(self) -> None:
        from llm_batch_assets.workload.templates import check_template

        for field, text in self.templates().items():
            check_template(field, text)
        if self.output.answer == "embedding" and not self.body:
            turns = self.prompt.turns()
            if len(turns) != 1 or turns[0].role != "user" or turns[0].images:
                raise WorkloadError("prompt: an embedding takes one text; write user alone.")

    def _check_native(self) -> None:
        extra = [
            name
            for name, given in (
                ("prompt.system", self.prompt.system),
                ("generation", self.generation),
                ("tools", self.tools),
                ("cache", self.cache),
            )
            if given
        ]
        if extra:
            raise WorkloadError(
                f"{extra[0]}: with body: native the body says everything; remove it."
            )
        module = request_module(self.provider)
        known = getattr(module, "BATCH_ENDPOINTS", module.ENDPOINTS)
        if self.endpoint not in known:
            raise WorkloadError(f"endpoint: write one of {', '.join(known)}.")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The business key's columns."""
        return (self.business_key,) if isinstance(self.business_key, str) else self.business_key

    def templates(self) -> dict[str, str]:
        """Every template of the prompt by the field it was written in."""
        if self.prompt.body is not None:
            return {"prompt.body": self.prompt.body}
        if self.prompt.user is not None:
            found = {"prompt.user": self.prompt.user}
            images = self.prompt.images
            return found | {f"prompt.images.{n}": text for n, text in enumerate(images)}
        found = {}
        for number, turn in enumerate(self.prompt.messages):
            found[f"prompt.messages.{number}.text"] = turn.text
            for place, text in enumerate(turn.images):
                found[f"prompt.messages.{number}.images.{place}"] = text
        return found

    def ask(self) -> Ask:
        """What every request of this workload has in common, as ``wire`` takes it."""
        return Ask(
            model=self.model,
            endpoint=self.endpoint,
            answer=self.output.answer,
            system=self.prompt.system,
            generation=self.generation,
            tools=tuple(ToolSpec(t.name, t.description, t.json_schema) for t in self.tools),
            schema=self.output.json_schema,
            name=self.output.name,
            strict=self.output.strict,
            cache=self.cache,
        )

    def tools_json(self) -> list[dict[str, Any]] | None:
        """The tools as declared, or None for none."""
        return [
            tool.model_dump(by_alias=True, exclude_defaults=True) for tool in self.tools
        ] or None

    @property
    def config_digest(self) -> str:
        """Digest (hex) of provider, model, endpoint, generation, tools, system and schema."""
        return identity.config_digest(
            provider=self.provider,
            model=self.model,
            endpoint=self.endpoint,
            generation=self.generation,
            tools=self.tools_json(),
            system=self.prompt.system,
            output_schema=self.output.json_schema,
        )

    @property
    def prompt_digest(self) -> str:
        """Digest (hex) of the whole wording: what ``prompt.version`` is bound to."""
        return identity.digest([_declared(self.prompt)])

    @property
    def output_digest(self) -> str:
        """Digest (hex) of the output contract: what ``output.version`` is bound to."""
        return identity.digest([_declared(self.output)])

    def labels(self, gate_source: Callable[[str], str] | None = None) -> dict[str, tuple[str, str]]:
        """Kind of label -> (version, digest of its content).

        Args:
            gate_source: gives the gate function's source, so that its label binds the code.
        """
        found = {
            "prompt": (self.prompt.version, self.prompt_digest),
            "output": (self.output.version, self.output_digest),
        }
        if self.gate is not None:
            source = gate_source(self.gate.function) if gate_source else None
            found["gate"] = (self.gate.version, identity.digest([self.gate.function, source]))
        return found


def _declared(part: Part) -> dict[str, Any]:
    """What a part says beyond its defaults, without its label.

    So a field that a later release adds changes no digest of a workload that does not use it.
    """
    return part.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"version"})


_WRITE = {
    "missing": "is missing; write it",
    "extra_forbidden": "is no field of a workload; remove it or correct its name",
    "string_type": "write text (in quotes)",
    "int_type": "write a whole number",
    "float_type": "write a number",
    "bool_type": "write true or false",
    "dict_type": "write a mapping",
    "tuple_type": "write a list",
}


def _explain(error: ValidationError) -> str:
    """Every fault in one sentence each: the field, then what to write."""
    found: dict[str, str] = {}
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"] if not _is_branch(part)) or "workload"
        text = _WRITE.get(fault["type"])
        if text is None:
            message = fault["msg"].removeprefix("Value error, ")
            text = message[:1].lower() + message[1:]
            if fault["type"] == "string_pattern_mismatch":
                text = f"write text that matches {fault['ctx']['pattern']}"
            elif fault["type"] == "literal_error":
                text = f"write {fault['ctx']['expected']}"
            elif fault["type"] in ("model_type", "model_attributes_type"):
                text = "write a mapping of fields"
        given = fault.get("input")
        if fault["type"] != "extra_forbidden" and isinstance(given, (str, int, float, bool)):
            text += f", not {given!r}"[:120]
        found.setdefault(where, text)
    return "; ".join(f"{where}: {text}" for where, text in found.items()) + "."


def _is_branch(part: str | int) -> bool:
    """Pydantic names the branches of a union in its locations; people did not write them."""
    return isinstance(part, str) and ("[" in part or part in ("constrained-str", "tuple"))
