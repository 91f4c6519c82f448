"""Revisions: late rows, a new prompt over old dates, open work, and crashes in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from llm_batch_assets.engine import Outcome, execute, freeze, plan
from llm_batch_assets.engine.gathering import collect_all
from llm_batch_assets.engine.superseding import supersede
from llm_batch_assets.errors import DriftError, InputError, LabelConflict, NotReady
from llm_batch_assets.ledger import views
from llm_batch_assets.ledger.published import published_candidate
from llm_batch_assets.reconcile.tables import read_table
from llm_batch_assets.reconcile.verify import verify
from llm_batch_assets.workload import Workload
from llm_batch_assets_tests.engine.bench import (
    CALM,
    DATASET,
    Bench,
    make_rows,
    make_workload,
)

Make = Callable[..., Bench]
DAY = 86_400.0


def _supersede(bench: Bench, rows: list[dict[str, str]], **options: Any) -> Outcome:
    return supersede(
        options.pop("workload", bench.workload),
        pa.Table.from_pylist(rows).to_batches(),
        dataset=DATASET,
        deps=options.pop("deps", bench.deps),
        submitter="test",
        reason="late rows",
        **options,
    )


def _table(bench: Bench) -> pa.Table:
    digest = published_candidate(bench.deps.ledger, "lab", "notes", DATASET)
    assert digest is not None
    return read_table(bench.deps.store, digest)


def _executed(bench: Bench) -> int:
    return len(bench.sim.executions())


def _no_faults(bench: Bench) -> None:
    assert verify(bench.home / "artifacts").faults == []
    assert bench.sim.meter()["paid_twice"] == 0


def test_late_rows_are_asked_and_what_was_accepted_is_carried_over(bench: Make) -> None:
    one = bench(records=16, settings=CALM)
    one.freeze()
    one.drive()
    old = one.view.row
    paid = _executed(one)
    outcome = _supersede(one, make_rows(20))
    assert (outcome.facts["revision"], outcome.facts["records"], outcome.facts["carried"]) == (
        2,
        4,
        16,
    )
    # Until the new one is published the old one is what downstream reads.
    assert _table(one).num_rows == 16
    one.drive()
    row = one.view.row
    assert (row.revision, row.records, row.accepted, row.carried) == (2, 20, 20, 16)
    assert _executed(one) == paid + 4
    table = _table(one)
    assert sorted(table["business_key"].to_pylist()) == [r["name"] for r in make_rows(20)]
    assert table["answer"].null_count == 0
    # The older version stays readable.
    assert old.candidate_digest is not None
    assert read_table(one.deps.store, old.candidate_digest).num_rows == 16
    settled = [r for r in one.settled() if r["rule"] == "carried"]
    assert len(settled) == 16
    assert {r["charged"] for r in settled} == {0}
    assert all(r["evidence"] and r["file"] and r["line"] for r in settled)
    _no_faults(one)


def test_the_same_rows_change_nothing(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    assert not _supersede(one, make_rows(8)).changed
    assert one.view.row.revision == 1
    _supersede(one, make_rows(9))
    again = _supersede(one, make_rows(9))
    assert (again.changed, one.view.row.revision) == (False, 2)


def test_run_goes_on_with_the_rows_of_the_new_revision_only(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    one.rows = make_rows(9)
    with pytest.raises(DriftError, match="supersede"):
        one.freeze()
    _supersede(one, one.rows)
    assert not one.freeze().changed
    one.rows = make_rows(8)
    with pytest.raises(DriftError, match="1 removed"):
        one.freeze()


def test_a_changed_row_is_asked_again_and_a_removed_one_is_dropped(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    rows = make_rows(8)[:7]
    rows[0] = {"name": rows[0]["name"], "text": "another text"}
    outcome = _supersede(one, rows)
    assert (outcome.facts["records"], outcome.facts["carried"]) == (1, 6)
    one.drive()
    assert _table(one).num_rows == 7
    _no_faults(one)


def test_rows_that_were_only_removed_cost_nothing(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    paid = _executed(one)
    outcome = _supersede(one, make_rows(5))
    assert (outcome.facts["records"], outcome.facts["shards"]) == (0, 0)
    one.drive()
    assert (one.view.row.accepted, _table(one).num_rows) == (5, 5)
    assert _executed(one) == paid
    _no_faults(one)


def test_a_new_prompt_over_old_dates_asks_everything_again(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    new = make_workload(prompt={"version": "v2", "system": "Shorter.", "user": "{{ name }}"})
    lie = make_workload(prompt={"version": "v1", "system": "Shorter.", "user": "{{ name }}"})
    with pytest.raises(LabelConflict):
        _supersede(one, one.rows, workload=lie)
    assert one.view.row.superseded_at is None
    outcome = _supersede(one, one.rows, workload=new)
    assert (outcome.facts["records"], outcome.facts["carried"]) == (8, 0)
    one.workload = new
    one.drive()
    assert one.view.row.accepted == 8
    versions = [
        row.revision
        for row in (v.row for v in views.settled_revisions(one.deps.ledger, "lab", "notes"))
    ]
    assert versions == [2, 1]
    _no_faults(one)


def test_reuse_never_asks_everything_again(bench: Make) -> None:
    one = bench(records=8, settings=CALM, workload=make_workload(reuse="never"))
    one.freeze()
    one.drive()
    assert _supersede(one, make_rows(9)).facts["records"] == 9


def test_another_gate_judges_for_itself(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    gate = {"version": "g1", "function": "builtins:bool"}
    outcome = _supersede(one, make_rows(9), workload=make_workload(gate=gate))
    assert outcome.facts["carried"] == 0


def test_questions_at_the_provider_are_waited_for_and_carried(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.freeze()
    one.drive(until="submitted")
    with pytest.raises(NotReady, match="16 records"):
        _supersede(one, make_rows(20))
    assert one.view.row.superseded_at is not None
    assert [w.kind for w in plan(one.deps) if w.kind == "submit"] == []
    one.sim.advance(DAY)
    assert collect_all(one.deps).exit_code == 0
    outcome = _supersede(one, make_rows(20))
    assert (outcome.facts["records"], outcome.facts["carried"]) == (4, 16)
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    assert one.view.row.accepted == 20
    assert _executed(one) == 20
    _no_faults(one)


def test_open_work_is_cancelled_when_a_person_says_so(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.freeze()
    one.drive(until="submitted")
    one.sim.advance(DAY / 24)
    with pytest.raises(NotReady):
        _supersede(one, make_rows(20), open_work="cancel")
    for work in [w for w in plan(one.deps) if w.kind == "cancel"]:
        execute(work, one.deps)
    one.sim.advance(3600)
    assert collect_all(one.deps).exit_code == 0
    assert {b["phase"] for b in one.own_batches()} == {"cancelled"}
    outcome = _supersede(one, make_rows(20), open_work="cancel")
    assert outcome.facts["records"] + outcome.facts["carried"] == 20
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    assert one.view.row.accepted == 20
    _no_faults(one)


def test_unlike_questions_wait_for_nothing_and_the_old_ones_are_still_collected(
    make_slow: Make,
) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    new = make_workload(prompt={"version": "v2", "system": "Shorter.", "user": "{{ name }}"})
    assert _supersede(one, one.rows, workload=new).changed
    one.sim.advance(DAY)
    one.workload = new
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    assert one.view.row.accepted == 8
    old = views.revision_view(one.deps.ledger, "lab", "notes", DATASET, 1)
    assert old is not None
    assert [s.state for s in old.shards] == ["ACCOUNTED"]
    assert old.row.published_at is None


def test_a_person_may_pay_again(make_slow: Make) -> None:
    one = make_slow(records=8)
    one.freeze()
    one.drive(until="submitted")
    outcome = _supersede(one, make_rows(9), open_work="pay_again")
    assert (outcome.facts["records"], outcome.facts["carried"]) == (9, 0)


def test_an_open_revision_carries_what_it_has_accepted_so_far(make_slow: Make) -> None:
    one = make_slow(records=16)
    one.freeze()
    first = next(w for w in plan(one.deps) if w.kind == "submit")
    execute(first, one.deps)
    one.sim.advance(DAY)
    assert collect_all(one.deps).exit_code == 0
    outcome = _supersede(one, make_rows(17))
    assert (outcome.facts["records"], outcome.facts["carried"]) == (9, 8)
    assert [w for w in plan(one.deps) if w.revision == 1] == []
    one.drive(until="submitted")
    one.sim.advance(DAY)
    one.drive()
    assert one.view.row.accepted == 17
    assert _executed(one) == 17
    _no_faults(one)


def test_a_third_revision_carries_what_the_second_carried(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    _supersede(one, make_rows(10))
    one.drive()
    outcome = _supersede(one, make_rows(11))
    assert (outcome.facts["records"], outcome.facts["carried"]) == (1, 10)
    one.drive()
    assert (one.view.row.revision, one.view.row.accepted) == (3, 11)
    assert _executed(one) == 11
    _no_faults(one)


class Dies(Exception):
    pass


class DiesAt:
    """Effects that die at the n-th boundary of a call."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.armed = False

    def at(self, name: str, when: str) -> None:
        del name, when
        if not self.armed:
            return
        self.left -= 1
        if self.left == 0:
            raise Dies


def test_a_crash_at_any_boundary_of_supersede_is_continued(bench: Make) -> None:
    """Superseding again after a death leaves one second revision and pays for nothing twice."""
    one = bench(records=8, settings=CALM)
    one.freeze()
    one.drive()
    # Each round dies a boundary later than the one before; the last one has none left to die at.
    deaths = 0
    for boundary in range(1, 60):
        dying = DiesAt(boundary)
        deps = one.worker(f"dies-{boundary}", effects=dying, settings=CALM)
        dying.armed = True
        try:
            _supersede(one, make_rows(8 + 2), deps=deps)
        except Dies:
            deaths += 1
            continue
        finally:
            dying.armed = False
            deps.ledger.close()
        break
    assert 3 <= deaths < 58
    one.drive()
    row = one.view.row
    assert (row.revision, row.accepted) == (2, 10)
    assert _executed(one) == 10
    _no_faults(one)


def test_what_was_never_frozen_is_not_superseded(bench: Make) -> None:
    one = bench(records=8, settings=CALM)
    with pytest.raises(InputError, match="never frozen"):
        _supersede(one, one.rows)


def test_reuse_workload_takes_answers_from_other_datasets(bench: Make) -> None:
    workload: Workload = make_workload(reuse="workload")
    one = bench(records=8, settings=CALM, workload=workload)
    one.freeze()
    one.drive()
    paid = _executed(one)
    outcome = freeze(
        workload,
        pa.Table.from_pylist(make_rows(10)).to_batches(),
        dataset="d2",
        deps=one.deps,
        submitter="test",
    )
    assert (outcome.facts["records"], outcome.facts["carried"]) == (2, 8)
    one.dataset = "d2"
    one.drive()
    assert one.view.row.accepted == 10
    assert _executed(one) == paid + 2
