"""Response bodies of the OpenAI endpoints, in the shapes that its SDK's models describe."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from llm_batch_assets.simulator.answers import Answer, Ask, answer
from llm_batch_assets.simulator.openai.errors import BodyError, error_payload
from llm_batch_assets.simulator.openai.vectors import embeddings, moderation

SERVED = (
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/completions",
    "/v1/moderations",
)
"""The endpoints that the simulator serves: all but images and videos."""
KNOWN_MODEL = re.compile(
    r"^(gpt-|o\d|chatgpt-|text-embedding-|omni-moderation|text-moderation|ft:|davinci|babbage)"
)
_DATED = re.compile(r"(\d{4}-\d{2}-\d{2}|-\d{3,4})$")
_UNDATED = re.compile(r"^(text-embedding-|ft:|.*-latest$|.*instruct$)")
_REASONING = re.compile(r"^(gpt-5|o\d)")
_FINISH = {
    "end": "stop",
    "refusal": "stop",
    "filter": "content_filter",
    "tool": "stop",
    "unheard": "reticulated",
}


def served_model(model: str, fault: str | None) -> str:
    """The snapshot that answers: what was asked for if it is dated."""
    if fault == "other_model":
        return "gpt-4o-mini-2024-07-18" if "gpt-4o-mini" not in model else "gpt-5-nano-2025-08-07"
    if _DATED.search(model) or _UNDATED.match(model):
        return model
    return f"{model}-2025-08-07"


def respond(
    endpoint: str, body: Mapping[str, Any], fault: str | None, rng: random.Random, created: int
) -> tuple[dict[str, Any], dict[str, int], str | None]:
    """The body of a 2xx: payload, token counts and ``cut`` where the token limit cut it.

    Raises:
        BodyError: The endpoint refuses the body.
    """
    model = served_model(str(body.get("model")), fault)
    if endpoint == "/v1/embeddings":
        return embeddings(body, model)
    if endpoint == "/v1/moderations":
        return moderation(body, model, rng)
    ask = {
        "/v1/responses": _ask_responses,
        "/v1/chat/completions": _ask_chat,
        "/v1/completions": _ask_completions,
    }[endpoint](body)
    made = answer(ask, rng, fault, reasoning=bool(_REASONING.match(model)))
    build = {
        "/v1/responses": _responses,
        "/v1/chat/completions": _chat,
        "/v1/completions": _completions,
    }[endpoint]
    count = {
        "input": made.input_tokens,
        "output": made.output_tokens,
        "reasoning": made.reasoning_tokens,
    }
    payload = build(body, model, made, rng, created)
    if fault == "response_failed":
        payload = _failed(endpoint, payload)
    return payload, count, "cut" if made.stop == "length" else None


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = []
    for part in content:
        if isinstance(part, Mapping):
            image = part.get("image_url")
            url = image.get("url") if isinstance(image, Mapping) else image
            parts.append(str(part.get("text") or url or ""))
        else:
            parts.append(str(part))
    return "\n".join(parts)


def _strict(schema: Any, where: str) -> None:
    """Strict mode's own rules: every object closed, every property required."""
    if isinstance(schema, list):
        for one in schema:
            _strict(one, where)
    if not isinstance(schema, Mapping):
        return
    if schema.get("type") == "object" or "properties" in schema:
        names = set(schema.get("properties") or {})
        if schema.get("additionalProperties") is not False:
            raise BodyError(
                "Invalid schema: 'additionalProperties' is required and must be false.",
                where,
                "invalid_json_schema",
            )
        if set(schema.get("required") or []) != names:
            raise BodyError(
                "Invalid schema: 'required' is required to be supplied and to be an array "
                "including every key in properties.",
                where,
                "invalid_json_schema",
            )
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            for one in value.values():
                _strict(one, where)
        elif key in ("items", "anyOf", "prefixItems"):
            _strict(value, where)


def _format(form: Any, where: str) -> tuple[Mapping[str, Any] | None, bool]:
    """(schema, plain JSON mode) of a response format; the wrapper may be flat or nested."""
    if not isinstance(form, Mapping):
        return None, False
    if form.get("type") == "json_object":
        return None, True
    if form.get("type") != "json_schema":
        return None, False
    inner = form.get("json_schema", form)
    if not isinstance(inner, Mapping) or not inner.get("name"):
        raise BodyError(f"Missing required parameter: '{where}.name'.", f"{where}.name",
                        "missing_required_parameter")  # fmt: skip
    schema = inner.get("schema")
    if not isinstance(schema, Mapping):
        raise BodyError(f"Missing required parameter: '{where}.schema'.", f"{where}.schema",
                        "missing_required_parameter")  # fmt: skip
    if inner.get("strict"):
        if schema.get("type") != "object":
            raise BodyError("Invalid schema: root must be of type 'object'.", where,
                            "invalid_json_schema")  # fmt: skip
        _strict(schema, where)
    return schema, False


def _tool(body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    choice, offered = body.get("tool_choice"), body.get("tools") or []
    if choice in (None, "auto", "none") or not offered:
        return None
    functions = [one.get("function", one) for one in offered if one.get("type") == "function"]
    if isinstance(choice, Mapping):
        wanted = choice.get("function", choice).get("name")
        functions = [one for one in functions if one.get("name") == wanted]
    if not functions:
        raise BodyError("Tool choice names a function that is not in 'tools'.", "tool_choice")
    return str(functions[0]["name"]), functions[0].get("parameters") or {"type": "object"}


def _ask_responses(body: Mapping[str, Any]) -> Ask:
    given = body.get("input")
    if given is None and body.get("prompt") is None:
        raise BodyError("Missing required parameter: 'input'.", "input",
                        "missing_required_parameter")  # fmt: skip
    system = str(body.get("instructions") or "")
    text = given if isinstance(given, str) else ""
    if isinstance(given, list):
        for item in given:
            if item.get("role") in ("system", "developer"):
                system += _text_of(item.get("content"))
            else:
                text += _text_of(item.get("content"))
    schema, plain = _format((body.get("text") or {}).get("format"), "text.format")
    return Ask(text, system, schema, plain, _tool(body), _cap(body, "max_output_tokens", 16))


def _ask_chat(body: Mapping[str, Any]) -> Ask:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BodyError("Missing required parameter: 'messages'.", "messages",
                        "missing_required_parameter")  # fmt: skip
    system = "".join(
        _text_of(one.get("content"))
        for one in messages
        if one.get("role") in ("system", "developer")
    )
    text = "\n".join(
        _text_of(one.get("content"))
        for one in messages
        if one.get("role") not in ("system", "developer")
    )
    schema, plain = _format(body.get("response_format"), "response_format")
    key = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    return Ask(text, system, schema, plain, _tool(body), _cap(body, key, 1))


def _ask_completions(body: Mapping[str, Any]) -> Ask:
    if body.get("prompt") is None:
        raise BodyError("Missing required parameter: 'prompt'.", "prompt",
                        "missing_required_parameter")  # fmt: skip
    return Ask(_text_of(body["prompt"]), max_tokens=_cap(body, "max_tokens", 1))


def _cap(body: Mapping[str, Any], key: str, least: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BodyError(f"Invalid '{key}': integer below minimum value. Expected >= {least}.", key,
                        "integer_below_min_value")  # fmt: skip
    return value


def _hex(rng: random.Random, length: int = 48) -> str:
    return f"{rng.getrandbits(length * 4):0{length}x}"


def _responses(
    body: Mapping[str, Any], model: str, made: Answer, rng: random.Random, created: int
) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if made.reasoning_tokens:
        output.append({"id": f"rs_{_hex(rng)}", "type": "reasoning", "summary": []})
    status = "incomplete" if made.stop in ("length", "filter") else "completed"
    status = "reticulated" if made.stop == "unheard" else status
    if made.tool:
        output.append(
            {
                "id": f"fc_{_hex(rng)}",
                "type": "function_call",
                "status": status,
                "arguments": made.text,
                "call_id": f"call_{_hex(rng, 24)}",
                "name": made.tool,
            }
        )
    elif made.stop != "filter":
        content = (
            {"type": "refusal", "refusal": made.text}
            if made.stop == "refusal"
            else {"type": "output_text", "annotations": [], "logprobs": [], "text": made.text}
        )
        output.append(
            {
                "id": f"msg_{_hex(rng)}",
                "type": "message",
                "status": status,
                "content": [content],
                "role": "assistant",
            }
        )
    reason = {"length": "max_output_tokens", "filter": "content_filter"}.get(made.stop)
    return {
        "id": f"resp_{_hex(rng)}",
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": {
            "input_tokens": made.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": made.output_tokens,
            "output_tokens_details": {"reasoning_tokens": made.reasoning_tokens},
            "total_tokens": made.input_tokens + made.output_tokens,
        },
        "user": None,
        "metadata": body.get("metadata") or {},
    }


def _chat(
    body: Mapping[str, Any], model: str, made: Answer, rng: random.Random, created: int
) -> dict[str, Any]:
    del body
    message: dict[str, Any] = {
        "role": "assistant",
        "content": made.text,
        "refusal": None,
        "annotations": [],
    }
    finish = _FINISH.get(made.stop, made.stop)
    if made.stop == "refusal":
        message |= {"content": None, "refusal": made.text}
    elif made.stop == "filter":
        message["content"] = None
    if made.tool:
        finish = "length" if made.stop == "length" else "stop"
        call = {"name": made.tool, "arguments": made.text}
        message["content"] = None
        message["tool_calls"] = [
            {"id": f"call_{_hex(rng, 24)}", "type": "function", "function": call}
        ]
    return {
        "id": f"chatcmpl-{_hex(rng, 29)}",
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {
            **_chat_usage(made),
            "prompt_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "audio_tokens": 0,
            },
            "completion_tokens_details": {
                "reasoning_tokens": made.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "service_tier": "default",
        "system_fingerprint": f"fp_{_hex(rng, 10)}",
    }


def _chat_usage(made: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": made.input_tokens,
        "completion_tokens": made.output_tokens,
        "total_tokens": made.input_tokens + made.output_tokens,
    }


def _completions(
    body: Mapping[str, Any], model: str, made: Answer, rng: random.Random, created: int
) -> dict[str, Any]:
    del body
    finish = _FINISH.get(made.stop, made.stop)
    choice = {"text": made.text, "index": 0, "logprobs": None, "finish_reason": finish}
    return {
        "id": f"cmpl-{_hex(rng, 29)}",
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": _chat_usage(made),
    }


def _failed(endpoint: str, payload: dict[str, Any]) -> dict[str, Any]:
    if endpoint != "/v1/responses":
        return error_payload("The server had an error.", "server_error", None, "server_error")
    error = {"code": "server_error", "message": "The model failed to generate a response."}
    return {**payload, "status": "failed", "error": error, "output": [], "usage": None}
