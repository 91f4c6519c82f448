"""The console script, called in this process against a simulator whose time stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.cli import main
from llm_batch_assets_tests.engine.bench import CALM, Bench, environment, start_simulator

Make = Callable[..., Bench]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A bench whose deployment the commands work on."""
    with start_simulator(scale=1.0, batch_seconds=28_800.0) as sim:
        for name, value in environment(sim, tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LLM_BATCH_SETTLE_INTERVAL", "300ms")
        monkeypatch.setenv("LLM_BATCH_POST_DEADLINE", "15s")
        monkeypatch.setenv("LLM_BATCH_POLL_INTERVAL", "50ms")
        monkeypatch.setenv("LLM_BATCH_SUBMITTER", "ada")

        def bench(**options: Any) -> Bench:
            return Bench(sim, tmp_path / "home", **{"settings": CALM} | options)

        yield bench


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(*args: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        out, err = capsys.readouterr()
        return Said(int(stop.value.code or 0), out, err)

    return run
