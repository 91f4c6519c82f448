"""What a workload needs is asked of the capability table where its dataset is frozen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_batch_assets.cli.main import group
from llm_batch_assets.engine import freeze
from llm_batch_assets.engine.opening import loopback_providers
from llm_batch_assets.engine.superseding import supersede
from llm_batch_assets.errors import GateClosed
from llm_batch_assets.ledger import views
from llm_batch_assets.wire.capabilities import cells
from llm_batch_assets_tests.e2e.providers import ANTHROPIC, GEMINI, OPENAI, ProviderBench
from llm_batch_assets_tests.engine.bench import DATASET
from llm_batch_assets_tests.engine.command import Command


def _nothing_frozen(b: ProviderBench) -> None:
    assert views.revision_view(b.deps.ledger, "lab", b.workload.name, DATASET) is None
    assert list(b.deps.store.digests()) == []
    assert b.sim.log() == []


def test_a_required_schema_is_never_dropped(tmp_path: Path) -> None:
    """No cell for the endpoint: refused with what would do instead, nothing written or sent."""
    with OPENAI.simulator() as sim:
        workload = OPENAI.workload(endpoint="/v1/chat/completions", model="gpt-4.1-mini-2025-04-14")
        strange = workload.model_copy(update={"endpoint": "/v1/completions"})
        b = ProviderBench(OPENAI, sim, tmp_path / "home", workload=strange)
        with pytest.raises(GateClosed) as refused:
            b.freeze()
        assert refused.value.exit_code == 4
        assert "answers under a JSON schema" in str(refused.value)
        assert "openai * /v1/responses" in str(refused.value)
        _nothing_frozen(b)


def test_nothing_is_known_of_a_model(tmp_path: Path) -> None:
    with ANTHROPIC.simulator() as sim:
        strange = ANTHROPIC.workload().model_copy(update={"model": "other-model-2026-01-01"})
        b = ProviderBench(ANTHROPIC, sim, tmp_path / "home", workload=strange)
        with pytest.raises(GateClosed, match="claude-"):
            b.freeze()
        _nothing_frozen(b)


def test_outside_loopback_an_untested_cell_needs_a_word(tmp_path: Path) -> None:
    with GEMINI.simulator() as sim:
        b = ProviderBench(GEMINI, sim, tmp_path / "home", records=4)
        far = replace(b.deps, loopback=frozenset({"openai"}))  # another provider's address is here
        rows = b.rows

        def tried(allowed: bool) -> Any:
            import pyarrow as pa

            workload = b.workload.model_copy(update={"allow_untested": allowed})
            batches = pa.Table.from_pylist(rows).to_batches()
            return freeze(workload, batches, dataset=DATASET, deps=far, submitter="test")

        with pytest.raises(GateClosed, match="allow_untested: true"):
            tried(False)
        _nothing_frozen(b)
        assert tried(True).changed
        # What is frozen stays frozen: the table of another day does not stop it.
        assert not tried(False).changed


def test_a_new_revision_is_asked_as_well(tmp_path: Path) -> None:
    import pyarrow as pa

    with OPENAI.simulator() as sim:
        b = ProviderBench(OPENAI, sim, tmp_path / "home", records=4)
        b.freeze()
        far = replace(b.deps, loopback=frozenset())
        with pytest.raises(GateClosed, match="allow_untested"):
            supersede(
                b.workload,
                pa.Table.from_pylist(b.rows[:3]).to_batches(),
                dataset=DATASET,
                deps=far,
                submitter="test",
                reason="fewer rows",
            )


def test_an_address_of_this_machine_speaks_for_its_own_provider_only() -> None:
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "ANTHROPIC_BASE_URL": "https://api.test"}
    assert loopback_providers(env) == {"openai"}
    assert loopback_providers({}) == frozenset()


def test_run_exits_with_four_and_says_what_would_do(tmp_path: Path) -> None:
    with ANTHROPIC.simulator() as sim:
        workload = ANTHROPIC.workload(model="other-model-2026-01-01")
        command = Command(tmp_path, sim, workload=workload, env=ANTHROPIC.env(sim, "sk-test"))
        ended = command.run()
        assert ended.code == 4, ended.err
        assert "known are: anthropic claude-* /v1/messages" in ended.err
        assert sim.log() == []


def test_every_cell_says_where_it_was_learned_and_whether_it_was_tested() -> None:
    for cell in cells():
        assert cell.learned_from and cell.learned_on
        assert cell.last_tested is None


def test_the_command_prints_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert group.main(args=["capabilities", "--format", "json"], standalone_mode=False) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["provider"], r["model"], r["endpoint"]) for r in rows] == [
        (cell.provider, cell.model, cell.endpoint) for cell in cells()
    ]
    argv = ["capabilities", "--provider", "bedrock", "--model", "amazon.titan-embed-text-v2:0"]
    assert group.main(args=argv, standalone_mode=False) == 0
    text = capsys.readouterr().out
    assert "*amazon.titan-embed-text*" in text and "minimum 100" in text and "never" in text
    assert "…" not in text
