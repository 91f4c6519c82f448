"""Embeddings and moderations."""

from __future__ import annotations

import base64
import random
from array import array
from collections.abc import Mapping
from typing import Any

from llm_batch_assets.simulator.answers import embedding, tokens
from llm_batch_assets.simulator.openai.errors import BodyError

_DIMENSIONS = {"text-embedding-3-large": 3072}


def embeddings(
    body: Mapping[str, Any], model: str
) -> tuple[dict[str, Any], dict[str, int], str | None]:
    """The body of an embeddings response; ``plain``: it has none of the faults of text."""
    given = body.get("input")
    if given is None or given == "" or given == []:
        raise BodyError("Missing required parameter: 'input'.", "input",
                        "missing_required_parameter")  # fmt: skip
    inputs = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    dimensions = int(body.get("dimensions") or _DIMENSIONS.get(model, 1536))
    data = []
    for index, one in enumerate(inputs):
        vector: Any = embedding(str(one), dimensions)
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(array("f", vector).tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    used = sum(tokens(str(one)) for one in inputs)
    usage = {"prompt_tokens": used, "total_tokens": used}
    payload = {"object": "list", "data": data, "model": model, "usage": usage}
    return payload, {"input": used, "output": 0}, "plain"


def moderation(
    body: Mapping[str, Any], model: str, rng: random.Random
) -> tuple[dict[str, Any], dict[str, int], str | None]:
    """The body of a moderations response: nothing is ever flagged."""
    given = body.get("input")
    if given is None:
        raise BodyError("Missing required parameter: 'input'.", "input",
                        "missing_required_parameter")  # fmt: skip
    names = (
        "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit",
        "illicit/violent", "self-harm", "self-harm/instructions", "self-harm/intent", "sexual",
        "sexual/minors", "violence", "violence/graphic",
    )  # fmt: skip
    result = {
        "flagged": False,
        "categories": dict.fromkeys(names, False),
        "category_scores": {name: round(rng.random() / 1000, 9) for name in names},
        "category_applied_input_types": {name: ["text"] for name in names},
    }
    count = len(given) if isinstance(given, list) else 1
    return (
        {"id": f"modr-{rng.getrandbits(96):024x}", "model": model, "results": [result] * count},
        {},
        "plain",
    )
