"""``llm-batch-assets run`` as a process of its own, against a simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_batch_assets.simulator import Simulator
from llm_batch_assets.workload import Workload
from llm_batch_assets_tests.engine.bench import environment, make_rows, make_workload
from llm_batch_assets_tests.zygote import Forked, the_zygote

ARGUMENTS = ("--poll-interval", "100ms", "--settle-interval", "300ms", "--format", "json")
WORKLOAD_FIELDS = (
    "name",
    "tenant_id",
    "provider",
    "model",
    "endpoint",
    "business_key",
    "prompt",
    "generation",
    "output",
    "limits",
    "retry",
    "publish",
)


@dataclass(frozen=True)
class Ended:
    """What a finished process left."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The JSON of the last line of stdout."""
        found = json.loads(self.out.strip().splitlines()[-1])
        assert isinstance(found, dict)
        return found


class Command:
    """A folder with a workload and its input, and the command that runs them."""

    def __init__(
        self,
        folder: Path,
        sim: Simulator | str,
        *,
        workload: Workload | None = None,
        records: int = 24,
        env: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.runs = 0
        self.workload = make_workload() if workload is None else workload
        self.workload_file = folder / "workload.yaml"
        fields = self.workload.model_dump(mode="json", by_alias=True, include=set(WORKLOAD_FIELDS))
        self.workload_file.write_text(yaml.safe_dump(_without_nulls(fields)), encoding="utf-8")
        self.input_file = folder / "input.jsonl"
        self.write_rows(make_rows(records))
        base = sim if isinstance(sim, str) else sim.base_url
        given = {
            "OPENAI_BASE_URL": base,
            "OPENAI_API_KEY": "sk-test",
            "LLM_BATCH_HOME": str(folder / "home"),
            "LLM_BATCH_POST_DEADLINE": "800ms",
        }
        self.env = {**_clean_environment(), **given, **(env or {})}

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        """The input as JSON lines."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        self.input_file.write_text(text, encoding="utf-8")

    def arguments(self, *more: str, dataset: str = "d1") -> list[str]:
        """Of the command."""
        given = [str(self.workload_file), "--input", str(self.input_file), "--dataset", dataset]
        return ["run", *given, *ARGUMENTS, *more]

    def run_from_a_shell(self, *more: str) -> Ended:
        """Run it as a person does: an interpreter of its own, that imports all by itself."""
        done = subprocess.run(
            [sys.executable, "-m", "llm_batch_assets.cli", *self.arguments(*more)],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(
        self, *more: str, env: Mapping[str, str] | None = None, seen: Path | None = None
    ) -> Forked:
        """Start it and return at once; ``seen``: have it watched, with the records in that file."""
        self.runs += 1
        arguments, entry = self.arguments(*more), "llm_batch_assets.cli"
        if seen is not None:
            arguments, entry = [str(seen), *arguments], "llm_batch_assets_tests.crash.recorded"
        return the_zygote().start(
            arguments,
            {**self.env, **(env or {})},
            self.folder,
            f"run{self.runs}",
            preload=[f"llm_batch_assets.providers.{self.workload.provider}"],
            entry=entry,
        )

    def run(self, *more: str, env: dict[str, str] | None = None, seconds: float = 100.0) -> Ended:
        """Run it to its end."""
        process = self.start(*more, env=env)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"still running after {seconds} s: {out} {err}") from None
        return Ended(process.returncode, out, err)


def _clean_environment() -> dict[str, str]:
    """This process's environment without anything that names a provider or a deployment."""
    foreign = ("OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_", "AWS_", "LLM_BATCH_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value


__all__ = ["Command", "Ended", "environment"]
