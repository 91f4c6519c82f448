"""Request encodings: every body is what the provider's own SDK types accept."""

import json
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import botocore.session
import pytest
from anthropic.types import ToolParam
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from anthropic.types.messages.batch_create_params import BatchCreateParams
from botocore.validate import ParamValidator
from google.genai import types as genai
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses import FunctionToolParam
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from llm_batch_assets.errors import WorkloadError
from llm_batch_assets.types import ProviderName
from llm_batch_assets.wire.anthropic.request import envelope
from llm_batch_assets.wire.ask import Ask, Message, ToolSpec, request_module

SCHEMA = {
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
    "properties": {
        "a": {"type": ["string", "null"]},
    },
}
LOOSE = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = ToolSpec("look_up", "Looks up.", SCHEMA)
ONE = [Message("user", 'Grüße \u2028 \U0001f600 "q"\n')]
TALK = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
WIRE = "abcdefghijklmnop-" + "A" * 43
MODELS: dict[str, str] = {
    "openai": "gpt-5-mini-2025-08-07",
    "anthropic": "claude-haiku-4-5-20251001",
    "gemini": "gemini-2.0-flash-001",
    "bedrock": "anthropic.claude-haiku-4-5-20251001-v1:0",
}
LINE_KEYS = {
    "openai": ("custom_id", "body"),
    "anthropic": ("custom_id", "params"),
    "gemini": ("key", "request"),
    "bedrock": ("recordId", "modelInput"),
}


def ask(provider: str, **changes: Any) -> Ask:
    module = request_module(provider)  # type: ignore[arg-type]
    given: dict[str, Any] = {
        "model": MODELS[provider],
        "endpoint": module.ENDPOINTS[0],
        "answer": "json",
        "system": "Be brief.",
        "schema": SCHEMA,
        "generation": {"max_output_tokens": 50},
    }
    return Ask(**{**given, **changes})


def body(provider: str, messages: Sequence[Message] = ONE, **changes: Any) -> dict[str, Any]:
    """One body, through the line and back, checked against the provider's own types."""
    module = request_module(provider)  # type: ignore[arg-type]
    asked = ask(provider, **changes)
    raw = module.encoder(asked)(messages)
    line = module.request_line(WIRE, raw, asked.endpoint)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert module.request_body(line) == raw
    key, place = LINE_KEYS[provider]
    parsed = json.loads(line)
    assert parsed[key] == WIRE
    found = parsed[place]
    assert found == json.loads(raw)
    CHECKS[provider](found, asked)
    return found


def typed(kind: Any, found: dict[str, Any]) -> None:
    assert set(found) <= set(get_type_hints(kind))
    checked = TypeAdapter(kind).validate_python(found)
    for name in ("messages", "input"):
        if not isinstance(checked.get(name, ""), str):
            list(checked[name])  # lazily validated
    for tool in found.get("tools", []):
        TypeAdapter(TOOLS[kind]).validate_python(tool)


TOOLS: dict[Any, Any] = {
    ResponseCreateParamsNonStreaming: FunctionToolParam,
    CompletionCreateParamsNonStreaming: ChatCompletionFunctionToolParam,
    MessageCreateParamsNonStreaming: ToolParam,
}


def check_openai(found: dict[str, Any], asked: Ask) -> None:
    kinds = {
        "/v1/responses": ResponseCreateParamsNonStreaming,
        "/v1/chat/completions": CompletionCreateParamsNonStreaming,
        "/v1/embeddings": EmbeddingCreateParams,
    }
    typed(kinds[asked.endpoint], found)


def check_anthropic(found: dict[str, Any], asked: Ask) -> None:
    typed(MessageCreateParamsNonStreaming, found)


def check_gemini(found: dict[str, Any], asked: Ask) -> None:
    if asked.endpoint == "embedContent":
        genai.Content.model_validate(found["content"])
        assert set(found) <= {"content", "outputDimensionality", "taskType", "title"}
        return
    for content in found["contents"]:
        genai.Content.model_validate(content)
    if "systemInstruction" in found:
        genai.Content.model_validate(found["systemInstruction"])
    genai.GenerationConfig.model_validate(found.get("generationConfig", {}))
    for tool in found.get("tools", []):
        genai.Tool.model_validate(tool)


def check_bedrock(found: dict[str, Any], asked: Ask) -> None:
    if asked.endpoint == "Converse":
        assert "modelId" not in found
        shape = (
            botocore.session.get_session()
            .get_service_model("bedrock-runtime")
            .operation_model("Converse")
            .input_shape
        )
        report = ParamValidator().validate({**found, "modelId": "m"}, shape)
        assert not report.has_errors(), report.generate_report()
    elif "anthropic_version" in found:
        plain = {name: value for name, value in found.items() if name != "anthropic_version"}
        typed(MessageCreateParamsNonStreaming, {**plain, "model": "m"})


CHECKS: dict[str, Callable[[dict[str, Any], Ask], None]] = {
    "openai": check_openai,
    "anthropic": check_anthropic,
    "gemini": check_gemini,
    "bedrock": check_bedrock,
}
EVERY: list[ProviderName] = ["openai", "anthropic", "gemini", "bedrock"]


@pytest.mark.parametrize("provider", EVERY)
@pytest.mark.parametrize("messages", [ONE, TALK], ids=["one", "talk"])
def test_json_answers(provider: str, messages: list[Message]) -> None:
    found = body(provider, messages)
    text = json.dumps(found, ensure_ascii=False)
    assert "Be brief." in text
    for message in messages:
        assert json.dumps(message.text, ensure_ascii=False) in text
    where = {
        "openai": lambda: found["text"]["format"]["schema"],
        "anthropic": lambda: found["output_config"]["format"]["schema"],
        "gemini": lambda: found["generationConfig"]["responseSchema"],
        "bedrock": lambda: json.loads(
            found["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]
        ),
    }
    schema = where[provider]()
    if provider == "gemini":
        assert schema["properties"]["a"] == {"type": "STRING", "nullable": True}
        assert schema["propertyOrdering"] == ["a"]
        assert found["generationConfig"]["responseMimeType"] == "application/json"
    else:
        assert schema == SCHEMA


@pytest.mark.parametrize("provider", EVERY)
def test_text_answers_carry_no_schema(provider: str) -> None:
    found = json.dumps(body(provider, answer="text", schema=None))
    assert "schema" not in found.lower()


def test_openai_chat() -> None:
    chat = {"endpoint": "/v1/chat/completions"}
    generation = {"max_output_tokens": 5, "seed": 7, "stop": ["x"], "temperature": 0.5}
    found = body("openai", TALK, **chat, generation=generation)
    assert found["max_completion_tokens"] == 5
    assert (found["seed"], found["stop"], found["temperature"]) == (7, ["x"], 0.5)
    assert [turn["role"] for turn in found["messages"]] == ["system", "user", "assistant", "user"]
    assert found["response_format"]["json_schema"]["strict"] is True
    image = [Message("user", "see", ("https://h.invalid/a.png",))]
    [_, turn] = body("openai", image, **chat)["messages"]
    assert turn["content"][1]["image_url"]["url"] == "https://h.invalid/a.png"


def test_openai_strict_only_where_the_schema_allows_it() -> None:
    assert body("openai")["text"]["format"]["strict"] is True
    assert body("openai", schema=LOOSE)["text"]["format"]["strict"] is False
    assert body("openai", strict=False)["text"]["format"]["strict"] is False
    with pytest.raises(WorkloadError, match=r"output\.strict: .*additionalProperties"):
        body("openai", schema=LOOSE, strict=True)


def test_openai_settings_merge() -> None:
    found = body("openai", generation={"text": {"verbosity": "low"}, "reasoning_effort": "low"})
    assert found["text"]["verbosity"] == "low"
    assert found["text"]["format"]["type"] == "json_schema"
    assert found["reasoning"] == {"effort": "low"}


def test_tool_answers_force_the_tool() -> None:
    given = {"answer": "tool", "tools": (TOOL,)}
    found = body("openai", **given)
    assert found["tool_choice"] == {"type": "function", "name": "look_up"}
    assert found["tools"][0]["strict"] is True
    found = body("openai", endpoint="/v1/chat/completions", **given)
    assert found["tool_choice"]["function"]["name"] == "look_up"
    found = body("anthropic", **given)
    assert found["tool_choice"] == {"type": "tool", "name": "look_up"}
    assert found["tools"][0]["input_schema"] == SCHEMA
    found = body("gemini", **given)
    assert found["toolConfig"]["functionCallingConfig"]["mode"] == "ANY"
    found = body("bedrock", endpoint="InvokeModel", **given)
    assert found["tool_choice"] == {"type": "tool", "name": "look_up"}
    assert found["anthropic_version"] == "bedrock-2023-05-31"
    assert "model" not in found
    with pytest.raises(WorkloadError, match="Converse record with tools fails"):
        body("bedrock", **given)


def test_a_tool_answer_without_tools_makes_one_of_the_schema() -> None:
    found = body("anthropic", answer="tool", name="report")
    assert [tool["name"] for tool in found["tools"]] == ["report"]
    two = (TOOL, ToolSpec("other", None, SCHEMA))
    assert body("anthropic", answer="tool", tools=two)["tool_choice"] == {"type": "any"}
    assert body("openai", answer="tool", tools=two)["tool_choice"] == "required"


def test_images_by_reference() -> None:
    address = "https://h.invalid/dir/a.png?x=1"
    image = [Message("user", "see", (address,))]
    [turn] = body("openai", image)["input"]
    assert turn["content"][1] == {"type": "input_image", "detail": "auto", "image_url": address}
    [turn] = body("openai", [Message("user", "see", ("file-1",))])["input"]
    assert turn["content"][1]["file_id"] == "file-1"
    [turn] = body("anthropic", image)["messages"]
    assert turn["content"][0]["source"] == {"type": "url", "url": address}
    [turn] = body("gemini", image)["contents"]
    assert turn["parts"][1]["fileData"] == {"mimeType": "image/png", "fileUri": address}
    [turn] = body("bedrock", [Message("user", "see", ("s3://b/in/a.jpg",))])["messages"]
    picture = turn["content"][1]["image"]
    assert picture == {"format": "jpeg", "source": {"s3Location": {"uri": "s3://b/in/a.jpg"}}}


def test_embeddings() -> None:
    common = {"answer": "embedding", "schema": None, "system": None}
    generation = {"dimensions": 256}
    found = body("openai", endpoint="/v1/embeddings", **common, generation=generation)
    assert found == {"model": MODELS["openai"], "input": ONE[0].text, "dimensions": 256}
    found = body("gemini", endpoint="embedContent", **common, generation=generation)
    assert found == {"content": {"parts": [{"text": ONE[0].text}]}, "outputDimensionality": 256}
    titan = {"endpoint": "InvokeModel", "model": "amazon.titan-embed-text-v2:0"}
    found = body("bedrock", **titan, **common, generation=generation)
    assert found == {"inputText": ONE[0].text, "dimensions": 256}
    cohere = {"endpoint": "InvokeModel", "model": "cohere.embed-english-v3"}
    found = body("bedrock", **cohere, **common, generation={})
    assert found == {"texts": [ONE[0].text], "input_type": "search_document"}
    with pytest.raises(WorkloadError, match=r"output\.answer: anthropic offers no embeddings"):
        body("anthropic", **common)


def test_anthropic_cache_blocks_are_identical_on_every_request() -> None:
    control = {"type": "ephemeral", "ttl": "1h"}
    found = body("anthropic", cache="1h")
    assert found["system"] == [{"type": "text", "text": "Be brief.", "cache_control": control}]
    assert found["messages"] == [{"role": "user", "content": ONE[0].text}]
    talk = body("anthropic", TALK, cache="1h")["messages"]
    assert talk[1]["content"][-1]["cache_control"] == control
    assert talk[2]["content"] == "c"
    tools = body("anthropic", cache="1h", system=None, tools=(TOOL,), answer="text", schema=None)
    assert tools["tools"][-1]["cache_control"] == control
    one, two = (
        request_module("anthropic").encoder(ask("anthropic", cache="1h"))([Message("user", text)])
        for text in ("x", "y")
    )
    assert one.replace(b'"x"', b"") == two.replace(b'"y"', b"")


def test_anthropic_refuses_what_its_api_refuses() -> None:
    for name in ("temperature", "top_p", "top_k", "seed", "stream", "model", "speed"):
        with pytest.raises(WorkloadError, match=rf"generation\.{name}: "):
            body("anthropic", generation={"max_output_tokens": 5, name: 1})
    for limit in ({}, {"max_output_tokens": 0}, {"max_tokens": True}):
        with pytest.raises(WorkloadError, match="max_output_tokens: write how long"):
            body("anthropic", generation=limit)
    found = body("anthropic", generation={"max_tokens": 5, "stop": "x", "reasoning_effort": "low"})
    assert found["stop_sequences"] == ["x"]
    assert found["output_config"]["effort"] == "low"


def test_anthropic_envelope_keeps_the_stored_bytes() -> None:
    module = request_module("anthropic")
    encode = module.encoder(ask("anthropic"))
    lines = [module.request_line(f"id-{n}", encode(ONE), "/v1/messages") for n in range(3)]
    data = b"".join(envelope(lines))
    whole = json.loads(data)
    TypeAdapter(BatchCreateParams).validate_python(whole)
    assert [request["custom_id"] for request in whole["requests"]] == ["id-0", "id-1", "id-2"]
    assert len(data) == sum(map(len, lines)) - 1 + module.LIMITS.overhead
    assert all(line[:-1] in data for line in lines)
    assert json.loads(b"".join(envelope([]))) == {"requests": []}


def test_gemini_takes_the_json_schema_only_where_its_subset_ends() -> None:
    union = {"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}
    config = body("gemini", schema=union)["generationConfig"]
    assert config["responseJsonSchema"] == union
    assert "responseSchema" not in config
    generation = {"max_output_tokens": 5, "top_p": 0.5, "seed": 3, "stop": "x"}
    found = body("gemini", generation={**generation, "safetySettings": []})
    assert found["generationConfig"]["maxOutputTokens"] == 5
    assert found["generationConfig"]["stopSequences"] == ["x"]
    assert found["generationConfig"]["seed"] == 3
    assert found["safetySettings"] == []


def test_bedrock_converse_settings() -> None:
    generation = {"max_output_tokens": 5, "temperature": 0.1, "stop": "x", "top_k": 4}
    found = body("bedrock", generation=generation)
    assert found["inferenceConfig"] == {"maxTokens": 5, "temperature": 0.1, "stopSequences": ["x"]}
    assert found["additionalModelRequestFields"] == {"top_k": 4}
    with pytest.raises(WorkloadError, match="its own"):
        body("bedrock", endpoint="InvokeModel", model="meta.llama3-1-8b-instruct-v1:0")


@pytest.mark.parametrize("provider", EVERY)
def test_the_order_of_settings_is_not_part_of_the_request(provider: str) -> None:
    module = request_module(provider)  # type: ignore[arg-type]
    one = {"max_output_tokens": 5, "zeta": 1, "alpha": 2}
    two = {"alpha": 2, "zeta": 1, "max_output_tokens": 5}
    bodies = {module.encoder(ask(provider, generation=g))(ONE) for g in (one, two)}
    assert len(bodies) == 1


@pytest.mark.parametrize("provider", EVERY)
def test_settings_given_twice_or_out_of_place(provider: str) -> None:
    with pytest.raises(WorkloadError, match="given twice"):
        body(provider, generation={"max_output_tokens": 5, **TWICE[provider]})
    with pytest.raises(WorkloadError, match="endpoint"):
        body(provider, endpoint="/v1/embeddings", generation={"max_output_tokens": 5}, **WRONG)


TWICE = {
    "openai": {"max_tokens": 6},
    "anthropic": {"max_tokens": 6},
    "gemini": {"maxOutputTokens": 6},
    "bedrock": {"max_tokens": 6},
}
WRONG: dict[str, Any] = {}
