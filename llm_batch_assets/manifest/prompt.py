"""From columns to request bodies: templates rendered column-wise, then encoded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from llm_batch_assets.errors import WorkloadError
from llm_batch_assets.identity import rejected_digest
from llm_batch_assets.manifest import rules
from llm_batch_assets.wire.ask import Message, request_module
from llm_batch_assets.workload import Workload
from llm_batch_assets.workload.templates import ROW, compile_template

_RENDERING = (
    TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)
"""What a team's expressions may raise over one record's data."""

_PLACE = re.compile(r"\{\{-?\s*(\w+)")

_FAILED = object()
"""Stands for a text that could not be rendered."""


@dataclass(frozen=True, slots=True)
class Request:
    """One record's request: its body, or the rule that keeps it back.

    ``digest`` (32 raw bytes) is over the body, or over [rule, raw bytes]; ``group`` is equal for
    records that share a prompt prefix.
    """

    body: bytes
    digest: bytes
    rule: str | None = None
    group: int = 0
    inputs: int = 1


class Requests:
    """Renders and encodes the records of one workload over one table's columns.

    Raises:
        WorkloadError: a template names a column that the table does not have.
    """

    def __init__(self, workload: Workload, columns: Sequence[str], line_limit: int) -> None:
        self._templates = {
            field: compile_template(field, text, columns)
            for field, text in workload.templates().items()
        }
        _check_system(workload.prompt.system, columns)
        self._all_columns = tuple(columns)
        used = {name for _, names in self._templates.values() for name in names}
        self.columns = tuple(columns) if ROW in used else tuple(sorted(used))
        self._line_limit = line_limit
        module = request_module(workload.provider)
        self._overhead = len(module.request_line("x" * 60, b"", workload.endpoint))
        if workload.body == "native":
            names_model = workload.provider in ("openai", "anthropic")
            self._model = workload.model if names_model else None
            self._embeds = workload.endpoint == module.EMBEDDING_ENDPOINT
            self._one: Callable[[Sequence[Any]], Request] = self._native
            self._turns: list[tuple[str, int]] = []
        else:
            self._encode = module.encoder(workload.ask())
            self._turns = [(turn.role, len(turn.images)) for turn in workload.prompt.turns()]
            # Records that share all but the last message lie together, so that caches hit.
            self._shares_prefix = workload.cache is not None and len(self._turns) > 1
            self._one = self._encoded

    @property
    def overhead(self) -> int:
        """Bytes of a request line around its body."""
        return self._overhead

    def render(self, columns: Mapping[str, list[Any]], count: int) -> Iterator[Request]:
        """One request per row, in order."""
        if any(ROW in names for _, names in self._templates.values()):
            rows = zip(*(columns[name] for name in self._all_columns), strict=True)
            columns = {
                **columns,
                ROW: [dict(zip(self._all_columns, row, strict=True)) for row in rows],
            }
        texts = [
            _apply(template, [columns[name] for name in names], count)
            for template, names in self._templates.values()
        ]
        return map(self._one, zip(*texts, strict=True))

    def _encoded(self, texts: Sequence[Any]) -> Request:
        for text in texts:
            rule = rules.TEMPLATE if text is _FAILED else rules.text_rule(text)
            if rule is not None:
                return self._kept_back(rule, texts)
        if len(self._turns) == 1 and not self._turns[0][1]:
            messages = [Message(self._turns[0][0], texts[0])]
        else:
            messages = list(self._messages(texts))
        body = self._encode(messages)
        if len(body) + self._overhead > self._line_limit:
            return _rejected(rules.LINE_TOO_LONG, body)
        return Request(body, hashlib.sha256(body).digest(), group=self._group(messages))

    def _messages(self, texts: Sequence[str]) -> Iterator[Message]:
        place = 0
        for role, images in self._turns:
            addresses = texts[place + 1 : place + 1 + images]
            # An empty address is a record without that image.
            yield Message(role, texts[place], tuple(filter(None, addresses)))
            place += 1 + images

    def _group(self, messages: Sequence[Message]) -> int:
        if not self._shares_prefix:
            return 0
        return prefix_group([(m.role, m.text, m.images) for m in messages[:-1]])

    def _native(self, texts: Sequence[Any]) -> Request:
        text = texts[0]
        if text is _FAILED:
            return self._kept_back(rules.TEMPLATE, texts)
        # Only white space between JSON's tokens may hold these, and a line may not.
        body = _bytes(text).strip().replace(b"\r", b" ").replace(b"\n", b" ")
        rule, parsed = rules.native_rule(body, self._model)
        if rule is None and len(body) + self._overhead > self._line_limit:
            rule = rules.LINE_TOO_LONG
        if rule is not None:
            return _rejected(rule, body)
        return Request(body, hashlib.sha256(body).digest(), inputs=self._inputs(parsed))

    def _inputs(self, parsed: Mapping[str, Any]) -> int:
        return embedding_inputs(parsed) if self._embeds else 1

    def _kept_back(self, rule: str, texts: Sequence[Any]) -> Request:
        raw = b"\x1e".join(b"" if text is _FAILED else _bytes(text) for text in texts)
        return _rejected(rule, raw)


def _check_system(system: str | None, columns: Collection[str]) -> None:
    """Refuse a system prompt that looks as if it should be filled in: it is sent as it is."""
    for name in _PLACE.findall(system or ""):
        if name in columns:
            raise WorkloadError(
                f"prompt.system: is sent as it is, so {{{{ {name} }}}} would reach the model; put "
                "columns in prompt.user."
            )


def embedding_inputs(body: Mapping[str, Any]) -> int:
    """How many embedding inputs a body holds: texts, or lists of tokens, or one of either."""
    given = body.get("input")
    if isinstance(given, list) and given and not isinstance(given[0], int):
        return len(given)
    return 1


def prefix_group(shared: object) -> int:
    """A number that is equal for equal prompt prefixes, in 64 bits."""
    return int.from_bytes(hashlib.sha256(repr(shared).encode()).digest()[:8], "big")


def _rejected(rule: str, raw: bytes) -> Request:
    return Request(b"", bytes.fromhex(rejected_digest(rule, raw)), rule)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _apply(template: Callable[..., str], arguments: Sequence[list[Any]], count: int) -> list[Any]:
    if not arguments:
        return [template()] * count
    try:
        return list(map(template, *arguments))
    except _RENDERING:
        return [_one(template, row) for row in zip(*arguments, strict=True)]


def _one(template: Callable[..., str], row: Sequence[Any]) -> Any:
    try:
        return template(*row)
    except _RENDERING:
        return _FAILED
