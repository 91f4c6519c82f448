"""Published tables as inputs, and what keeps a development UI from spending money."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from llm_batch_assets.defs.io_manager import as_annotated
from llm_batch_assets.defs.resources import paid_work_is_off
from llm_batch_assets_tests.defs.loop import DATASET, Loop, failure_text

DATASETS = dg.DynamicPartitionsDefinition(name="summaries__dataset")
ACCEPTED = dg.AssetIn(["summaries", "accepted_results"])
TABLE = pa.table({"a": [1, 2]})


@pytest.mark.parametrize("annotation", [pd.DataFrame, Any, None, object])
def test_a_frame_is_what_most_ask_for(annotation: Any) -> None:
    assert as_annotated(TABLE, annotation)["a"].tolist() == [1, 2]


def test_arrow_is_given_as_it_is_and_others_are_refused() -> None:
    assert as_annotated(TABLE, pa.Table) is TABLE
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"pandas.DataFrame or pyarrow"):
        as_annotated(TABLE, dict)


def test_downstream_gets_what_it_is_annotated_with(start: Callable[..., Loop]) -> None:
    got: dict[str, Any] = {}

    @dg.asset(ins={"accepted": ACCEPTED}, partitions_def=DATASETS)
    def arrow(accepted: pa.Table) -> None:
        got["arrow"] = accepted

    @dg.asset(ins={"accepted": ACCEPTED}, partitions_def=DATASETS)
    def frame(accepted: pd.DataFrame) -> None:
        got["frame"] = accepted

    @dg.asset(ins={"accepted": ACCEPTED})
    def every(accepted: dict[str, pd.DataFrame]) -> None:
        got["every"] = accepted

    loop = start(more=[dg.Definitions(assets=[arrow, frame, every])])
    loop.add_dataset("2026-07-29")
    said = failure_text(loop.click(assets=[dg.AssetKey("frame")]))
    assert "nothing is published" in said
    assert loop.click("manifest").success
    assert loop.click("manifest", partition="2026-07-29").success
    loop.until_published()
    loop.until(lambda _view: len(loop.materialized("accepted_results")) == 2)
    assert loop.click(assets=[dg.AssetKey("arrow"), dg.AssetKey("frame")]).success
    assert loop.click(assets=[dg.AssetKey("every")], partition=None).success
    assert isinstance(got["arrow"], pa.Table)
    assert got["arrow"].num_rows == len(got["frame"]) == 40
    assert sorted(got["frame"]["business_key"])[:2] == ["k0000", "k0001"]
    assert {name: len(found) for name, found in got["every"].items()} == {
        DATASET: 40,
        "2026-07-29": 40,
    }


@pytest.mark.parametrize(
    ("env", "off"),
    [
        ({}, False),
        ({"DAGSTER_IS_DEV_CLI": "1"}, True),
        ({"DAGSTER_IS_DEV_CLI": "1", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, False),
        ({"DAGSTER_IS_DEV_CLI": "1", "OPENAI_BASE_URL": "https://api.example/v1"}, True),
        ({"DAGSTER_IS_DEV_CLI": "1", "LLM_BATCH_ALLOW_DEV": "1"}, False),
        ({"OPENAI_BASE_URL": "https://api.example/v1"}, False),
    ],
)
def test_paid_work_is_off_in_a_development_ui_of_a_real_provider(
    env: dict[str, str], off: bool
) -> None:
    assert paid_work_is_off(env) is off


def test_a_development_ui_sends_and_publishes_nothing(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loop.click("manifest").success
    monkeypatch.setenv("DAGSTER_IS_DEV_CLI", "1")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.example/v1")
    assert loop.requests() == []
    monkeypatch.setenv("LLM_BATCH_ALLOW_DEV", "1")
    assert [request.tags["llm_batch/work"] for request in loop.requests()] == ["submit"]
