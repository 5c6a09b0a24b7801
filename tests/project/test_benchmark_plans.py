"""What the long benchmarks decide before they start anything."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.spec import parse_spec

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package

from benchmarks import scale, strategy_switch
from benchmarks.accuracy import parts
from benchmarks.accuracy_plan import TABLES, Wanted
from benchmarks.accuracy_table import lines
from benchmarks.scale_map import NAMES, draw
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


def test_the_strategy_switch_is_told_from_the_runs_of_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seeds", "2", "--clusters", "equal", "--folder", str(tmp_path), "--table"]
    chosen = strategy_switch.parse(words)
    assert (chosen.model, chosen.epochs, chosen.learning_rate) == ("cnn", 10, 0.1)
    results = Results(tmp_path / "results.jsonl")
    for place, (cluster, strategy, seed) in enumerate(strategy_switch.wanted(chosen)):
        row = {name: getattr(chosen, name) for name in strategy_switch.SETTINGS}
        row |= {"cluster": cluster, "strategy": strategy, "seed": seed, "staleness": 1.0}
        # Twelve strategies, from synchronous to the end down; the first seven learn better.
        results.add(row | {"virtual_seconds": 9.0, "accuracy": 0.9 if place % 12 < 7 else 0.8})
    capsys.readouterr()
    strategy_switch.main(words)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(told) == 12
    assert [one["behind_allreduce"] for one in told] == [0.0] * 7 + [10.0] * 5


def test_the_resnet_of_the_strategy_switch_trains_as_the_study_does() -> None:
    chosen = strategy_switch.parse(["--model", "resnet", "--epochs", "30", "--device", "cuda"])
    assert (chosen.samples, chosen.seeds, chosen.link) == (50_000, 1, "1gbit")
    names = {strategy for _, strategy, _ in strategy_switch.wanted(chosen)}
    assert {"allreduce", "async", "switch:at=0.5", "async@0.5/allreduce"} <= names


def test_the_winner_of_a_cell_is_clearly_faster_than_those_before_it() -> None:
    speeds = dict.fromkeys(("single", *scale.STRATEGIES), 10.0)
    speeds |= {"single": 1.0, "allreduce:topology=butterfly": 10.4, "bsp": 20.0, "async": 25.0}
    few, many = (scale.Found(scale.Cell(n, 1e6, 10.0), speeds) for n in (10, 100))
    assert (few.exact, few.fastest) == ("bsp", "async")
    assert many.exact == "allreduce:topology=ring"  # that of bsp is an upper bound
    slower = scale.Found(few.cell, speeds | {"async": 20.9})
    assert slower.fastest == "bsp"


def test_the_map_has_a_cell_for_every_cluster() -> None:
    cells = [scale.Cell(n, 1e6, rate) for n in (100, 1000) for rate in (1.0, 400.0)]
    drawn = draw([scale.predict(cell).shown() for cell in cells])
    rects = [each for each in ElementTree.fromstring(drawn).iter() if each.tag.endswith("rect")]
    assert len(rects) > 1 + 2 * len(cells)  # the paper, both rows, and the legend
    assert set(NAMES) == {"single", *scale.STRATEGIES} - {"allreduce"}
