"""What each provider wants of one line of a request file, for judging files that we did not write.

Every function is pure and says in one word what is wrong, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_batch_assets.types import ProviderName
from llm_batch_assets.wire.openai.request import BATCH_ENDPOINTS

_ID = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ID_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Facts:
    """What must be equal in every line of a file, and how many embedding inputs this one has."""

    model: str | None = None
    url: str | None = None
    kind: str | None = None
    inputs: int = 0


@dataclass(frozen=True, slots=True)
class LineRules:
    """How one provider's lines are judged.

    Attributes:
        id_field: where the id is.
        id_length: longest id, None where the provider states none. OpenAI and Bedrock state none
            either, but 64 is what their implementations are reported to take.
        id_charset: whether ids are limited to ``[A-Za-z0-9_-]``.
        fields: the fault of a parsed line after its id, or None.
        facts: read from a line without such a fault.
    """

    id_field: str
    id_length: int | None
    id_charset: bool
    fields: Callable[[Mapping[str, Any]], str | None]
    facts: Callable[[Mapping[str, Any]], Facts]

    def id_fault(self, line: Mapping[str, Any]) -> str | None:
        """The fault of the line's id, or None."""
        if self.id_field not in line:
            return f"missing_{self.id_field}"
        found = line[self.id_field]
        if not isinstance(found, str):
            return f"{self.id_field}_not_text"
        if not found.strip():
            return f"empty_{self.id_field}"
        if _ID_CONTROL.search(found):
            return "control_character_in_id"
        if self.id_length is not None and len(found) > self.id_length:
            return f"id_over_{self.id_length}"
        if self.id_charset and _ID.fullmatch(found) is None:
            return "id_charset"
        return None


def _object(line: Mapping[str, Any], name: str) -> str | None:
    if name not in line:
        return f"missing_{name}"
    return None if isinstance(line[name], dict) else f"{name}_not_object"


def _text(line: Mapping[str, Any], name: str) -> str | None:
    if line.get(name) is None:
        return f"missing_{name}"
    return None if isinstance(line[name], str) and line[name] else f"{name}_not_text"


def _array(line: Mapping[str, Any], name: str) -> str | None:
    if line.get(name) is None:
        return f"missing_{name}"
    return None if isinstance(line[name], list) else f"{name}_not_list"


_OPENAI_NEEDS = {
    "/v1/chat/completions": "messages",
    "/v1/embeddings": "input",
    "/v1/moderations": "input",
    "/v1/completions": "prompt",
}


_VLLM_ENDPOINTS = frozenset({"/v1/score", "/v1/rerank", "/v1/pooling"})


def _openai_fields(line: Mapping[str, Any]) -> str | None:
    if "method" not in line:
        return "missing_method"
    if line["method"] != "POST":
        return "method_not_post"
    fault = _text(line, "url") or _object(line, "body")
    if fault is not None:
        return fault
    body = line["body"]
    fault = _text(body, "model")
    if fault is not None:
        return fault
    return "stream" if body.get("stream") else None


def _openai_body(line: Mapping[str, Any]) -> str | None:
    """Faults that a line of the file's own endpoint may have."""
    # Azure's paths are the same without /v1.
    url = line["url"] if line["url"].startswith("/v1/") else "/v1" + line["url"]
    if url not in BATCH_ENDPOINTS and url not in _VLLM_ENDPOINTS:
        return "unknown_url"
    needed = _OPENAI_NEEDS.get(url)
    if needed == "messages":
        return _array(line["body"], needed)
    if needed is not None and line["body"].get(needed) is None:
        return f"missing_{needed}"
    return None


def _openai_facts(line: Mapping[str, Any]) -> Facts:
    inputs = 0
    if line["url"].endswith("/embeddings"):
        given = line["body"].get("input")
        # A list of token numbers is one input, a list of texts or of token lists is several.
        many = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
        inputs = len(given) if many else 1
    return Facts(model=line["body"]["model"], url=line["url"], inputs=inputs)


def _anthropic_fields(line: Mapping[str, Any]) -> str | None:
    fault = _object(line, "params")
    if fault is not None:
        return fault
    params = line["params"]
    fault = _text(params, "model") or _array(params, "messages")
    if fault is not None:
        return fault
    if "max_tokens" not in params:
        return "missing_max_tokens"
    limit = params["max_tokens"]
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        return "max_tokens_not_positive"
    if params.get("stream"):
        return "stream"
    return "speed" if "speed" in params else None


def _gemini_fields(line: Mapping[str, Any]) -> str | None:
    fault = _object(line, "request")
    if fault is not None:
        return fault
    request = line["request"]
    if "config" in request:
        # The SDK's flat shape; in files settings nest under generationConfig.
        return "config_not_generation_config"
    if "contents" in request:
        return None if isinstance(request["contents"], (list, dict)) else "contents_not_list"
    if "content" in request:
        return None if isinstance(request["content"], dict) else "content_not_object"
    return "missing_contents"


def _gemini_facts(line: Mapping[str, Any]) -> Facts:
    request = line["request"]
    model = request.get("model")
    return Facts(
        model=model if isinstance(model, str) else None,
        kind="embed" if "content" in request else "generate",
    )


def _bedrock_fields(line: Mapping[str, Any]) -> str | None:
    fault = _object(line, "modelInput")
    if fault is not None:
        return fault
    given = line["modelInput"]
    if not given:
        return "empty_modelInput"
    if "modelId" in given:
        return "model_id_in_input"
    return "tool_config_in_converse" if "toolConfig" in given else None


def _bedrock_facts(line: Mapping[str, Any]) -> Facts:
    given = line["modelInput"]
    if "anthropic_version" in given:
        return Facts(kind="claude")
    messages = given.get("messages")
    if "inferenceConfig" in given or (isinstance(messages, list) and _converse(messages)):
        return Facts(kind="converse")
    return Facts(kind="invoke")


def _converse(messages: list[Any]) -> bool:
    """Converse content is a list of blocks without ``type``."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and content and isinstance(content[0], dict):
            return "type" not in content[0]
    return False


LINE_RULES: dict[ProviderName, LineRules] = {
    "openai": LineRules("custom_id", 64, False, _openai_fields, _openai_facts),
    "anthropic": LineRules("custom_id", 64, True, _anthropic_fields, lambda _: Facts()),
    "gemini": LineRules("key", None, False, _gemini_fields, _gemini_facts),
    "bedrock": LineRules("recordId", 64, False, _bedrock_fields, _bedrock_facts),
}
"""Anthropic allows several models in one batch; Gemini's and Bedrock's model is the batch's."""

BODY_FAULT: dict[ProviderName, Callable[[Mapping[str, Any]], str | None]] = {"openai": _openai_body}
"""Judged after mixed models and URLs, whose lines cannot belong to the file anyway."""
