"""A bare OpenAI client over raw HTTP, so that no SDK smooths over what the server did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx2

from llm_batch_assets.simulator import Simulator

MODEL = "gpt-4o-mini-2024-07-18"
SCHEMA = {
    "type": "object",
    "required": ["summary", "topic"],
    "additionalProperties": False,
    "properties": {"summary": {"type": "string"}, "topic": {"type": "string"}},
}


def responses_body(text: str, **more: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}
    return {"model": MODEL, "input": text, "text": {"format": form}, **more}


def chat_body(text: str, **more: Any) -> dict[str, Any]:
    form = {"name": "answer", "strict": True, "schema": SCHEMA}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "response_format": {"type": "json_schema", "json_schema": form},
        **more,
    }


def line(name: str, body: Any, url: str = "/v1/responses", method: str = "POST") -> str:
    return json.dumps({"custom_id": name, "method": method, "url": url, "body": body})


def lines(count: int, prefix: str = "r") -> bytes:
    made = [line(f"{prefix}-{n}", responses_body(f"Thing number {n}")) for n in range(count)]
    return ("\n".join(made) + "\n").encode()


def read_rows(data: bytes) -> list[dict[str, Any]]:
    """Rows of a well-formed result file."""
    return [json.loads(raw) for raw in data.split(b"\n") if raw.strip()]


def answer_text(row: dict[str, Any]) -> str:
    body = row["response"]["body"]
    if "choices" in body:
        return body["choices"][0]["message"]["content"]
    return next(one for one in body["output"] if one["type"] == "message")["content"][0]["text"]


class Raw:
    """One account's calls."""

    def __init__(self, sim: Simulator, key: str = "sk-test", **headers: str) -> None:
        self.sim = sim
        self.http = httpx2.Client(
            base_url=sim.base_url,
            headers={"authorization": f"Bearer {key}", **headers},
            timeout=10,
        )

    def upload(
        self, data: bytes, name: str = "in.jsonl", purpose: str = "batch"
    ) -> httpx2.Response:
        return self.http.post(
            "/files",
            data={"purpose": purpose},
            files={"file": (name, data, "application/octet-stream")},
        )

    def create(self, file_id: str, endpoint: str = "/v1/responses", **more: Any) -> httpx2.Response:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **more}
        return self.http.post("/batches", json=body)

    def submit(self, data: bytes, endpoint: str = "/v1/responses", **more: Any) -> str:
        """Upload and create; the batch's id."""
        made = self.create(self.upload(data).json()["id"], endpoint, **more)
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    def batch(self, batch_id: str) -> dict[str, Any]:
        reply = self.http.get(f"/batches/{batch_id}")
        assert reply.status_code == 200, reply.text
        return reply.json()

    def finish(self, data: bytes, endpoint: str = "/v1/responses", **more: Any) -> dict[str, Any]:
        """A batch at its end."""
        batch_id = self.submit(data, endpoint, **more)
        self.sim.advance(90_000)
        return self.batch(batch_id)

    def content(self, file_id: str | None) -> bytes:
        if not file_id:
            return b""
        reply = self.http.get(f"/files/{file_id}/content")
        assert reply.status_code == 200, reply.text
        return reply.content

    def files_of(self, batch: dict[str, Any]) -> tuple[bytes, bytes]:
        return self.content(batch["output_file_id"]), self.content(batch["error_file_id"])

    def rows_of(self, batch: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        output, errors = self.files_of(batch)
        return read_rows(output), read_rows(errors)


def ids(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["custom_id"] for row in rows]
