"""What the long benchmarks decide before they start anything."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.spec import parse_spec

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package

from benchmarks.accuracy import parts
from benchmarks.accuracy_plan import TABLES, Wanted
from benchmarks.accuracy_table import lines
from benchmarks.switch_worker import STRATEGIES, circuit, spec_of
from benchmarks.whole_runs import Results


@given(st.integers(2, 9))
def test_a_circuit_takes_every_ordered_pair_once(count: int) -> None:
    pairs = list(itertools.pairwise(circuit(count)))
    assert sorted(pairs) == sorted(itertools.permutations(range(count), 2))


def test_the_circuit_is_a_spec() -> None:
    way = circuit(len(STRATEGIES))
    labels = [phase.label for phase in parse_spec(spec_of(way)).phases]
    assert labels == [STRATEGIES[place] for place in way]


@given(st.integers(1, 64), st.integers(1, 20))
def test_parallel_runs_share_no_core_unless_there_are_too_few(cores: int, count: int) -> None:
    found = parts(list(range(cores)), count)
    assert len(found) == count
    taken = [cpu for part in found for cpu in part]
    assert all(found)
    assert len(set(taken)) == len(taken) or count > cores


def test_a_finished_run_is_not_wanted_again(tmp_path: Path) -> None:
    file, wanted = tmp_path / "results.jsonl", Wanted(4, None, None, None)
    trials = list(wanted.all())
    Results(file).add({**trials[0].key, "test_accuracy": 0.9, "bytes_sent": 1})
    with file.open("a") as cut_short:
        cut_short.write(json.dumps({**trials[1].key, "test_accuracy": 0.9})[:-9])
    results = Results(file)
    assert results.find(trials[0].key) is not None
    assert not any(results.find(trial.key) for trial in trials[1:])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_strategy_of_a_table_is_a_spec_with_a_line(table) -> None:  # type: ignore[no-untyped-def]
    rows = {"allreduce": [{"test_accuracy": 0.5, "bytes_sent": 100}]}
    other = table.strategies[-1]
    rows[other] = [{"test_accuracy": a, "bytes_sent": 25} for a in (0.7, 0.6)]
    found = list(lines(table, Wanted(4, None, None, None), rows))
    assert [parse_spec(strategy).text for strategy in table.strategies] == list(table.strategies)
    assert found[-1] == f"| `{other}` | 65.00 | 60.00 – 70.00 | +15.00 | 2 | 0.250 × |"
    assert len(found) == 4 + len(table.strategies)
