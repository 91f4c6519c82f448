"""A dataset from its rows to published at each provider, judged by the simulator's meter."""

from __future__ import annotations

from llm_batch_assets_tests.e2e.conftest import Make

EVERYONE = set(range(24))


def test_a_good_day(bench: Make) -> None:
    b = bench(records=24)
    b.freeze()
    assert b.drive() == []
    assert b.states() == {"accepted": EVERYONE}
    assert b.view.row.published_at is not None
    assert set(b.executed().values()) == {1} and len(b.executed()) == 24
    b.assert_no_second_batch(creates=3)
