"""Prompt caching at Anthropic: what is sent, how records lie, and what was measured of it."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import groupby
from pathlib import Path

from llm_batch_assets.costs import CACHE_HITS_UNTIL_MEASURED, cache_hits, expected_hits
from llm_batch_assets.engine.showing import show
from llm_batch_assets.reconcile.digests import read_document
from llm_batch_assets.reconcile.merge import JOB_CLOSURE
from llm_batch_assets_tests.e2e.providers import ANTHROPIC, ProviderBench
from llm_batch_assets_tests.engine.bench import DATASET

DOCUMENTS, QUESTIONS = 3, 8
TURNS = [
    {"text": "{{ document }}"},
    {"role": "assistant", "text": "I have read it."},
    {"text": "{{ text }}"},
]


def test_hits_are_measured_per_job(tmp_path: Path) -> None:
    documents = [f"Document {n}. " + "All of it is read once and kept. " * 300 for n in range(3)]
    rows = [
        {"name": f"r{n:03d}", "text": f"Question {n}?", "document": documents[n % DOCUMENTS]}
        for n in range(DOCUMENTS * QUESTIONS)
    ]
    workload = ANTHROPIC.workload(
        records_per_shard=12,
        cache="1h",
        prompt={"version": "v1", "system": "Summarise.", "messages": TURNS},
    )
    with ANTHROPIC.simulator() as sim:
        b = ProviderBench(ANTHROPIC, sim, tmp_path / "home", workload=workload, rows=rows)
        b.freeze()
        b.drive()
        assert b.states() == {"accepted": set(range(len(rows)))}

        # Every request marks the same blocks with the long life, byte for byte per document.
        prefixes = []
        for shard in b.view.shards:
            for line in b.deps.store.get(shard.request_digest).splitlines():
                params = json.loads(line)["params"]
                shared = json.dumps([params["system"], params["messages"][:-1]])
                assert shared.count('"cache_control": {"type": "ephemeral", "ttl": "1h"}') == 2
                assert "cache_control" not in json.dumps(params["messages"][-1])
                prefixes.append(shared)
        assert len(set(prefixes)) == DOCUMENTS
        # Records with one prefix lie together, over shards as well.
        assert len([key for key, _ in groupby(prefixes)]) == DOCUMENTS

        (job,) = b.view.jobs
        used = read_document(b.deps.store, job.closure_digest or "", JOB_CLOSURE)["usage"]
        ran = sim.executions()
        assert used["cached_input_tokens"] == sum(one["cached_tokens"] for one in ran) > 0
        assert used["input_tokens"] == sum(one["input_tokens"] for one in ran)
        hits = cache_hits(used)
        assert hits is not None and Decimal("0.3") < hits < 1
        (entry,) = show(b.deps, DATASET)["datasets"]
        (shown,) = entry["usage"]
        assert shown["cache_hits"] == round(float(hits), 4)
        assert shown["cached_input_tokens"] == used["cached_input_tokens"]
        assert expected_hits(hits) == hits


def test_until_it_is_measured_a_third_is_expected() -> None:
    assert expected_hits(None) == CACHE_HITS_UNTIL_MEASURED == Decimal("0.30")
    assert cache_hits({"cached_input_tokens": None, "cache_write_tokens": 0}) is None
    assert cache_hits({"cached_input_tokens": 0, "cache_write_tokens": 5}) == 0


def test_without_cache_nothing_is_marked(tmp_path: Path) -> None:
    with ANTHROPIC.simulator() as sim:
        b = ProviderBench(ANTHROPIC, sim, tmp_path / "home", records=4)
        b.freeze()
        (shard,) = b.view.shards
        assert b"cache_control" not in b.deps.store.get(shard.request_digest)
        (entry,) = show(b.deps, DATASET)["datasets"]
        assert entry["usage"] == [{"attempt": 1}]
