"""The pure parts of the benchmarks between machines."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.spec import parse_spec

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package

from benchmarks import hosts_codecs, hosts_steps, hosts_straggler
from benchmarks.hosts_teams import Failed, Team, in_turns
from benchmarks.peers.turns import MARK, take_turns
from benchmarks.whole_runs import Results


class Counted(Team):
    """A team without processes, which fails at one of its blocks."""

    def __init__(self, name: str, log: list[str], fails_at: int | None = None) -> None:
        self.name, self._log, self._fails_at, self._blocks = name, log, fails_at, 0

    def block(self, steps: int, limit: float = 1.0) -> float:
        self._blocks += 1
        if self._blocks == self._fails_at:
            raise Failed("it printed nothing")
        self._log.append(self.name)
        return float(steps)


def test_teams_compute_in_turns_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    teams: dict[str, Team] = {name: Counted(name, log) for name in "ab"}
    found = in_turns(teams, lambda name: {"a": 1, "b": 2}[name], 3, lambda *_: None)
    assert found == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert sorted(log[:2]) == ["a", "b"] and len(log) == 8
    assert log[2:4] == log[6:8] != log[4:6]


def test_a_team_that_fails_is_told_and_left_out() -> None:
    log: list[str] = []
    told: list[tuple[str, str]] = []
    teams: dict[str, Team] = {"a": Counted("a", log), "b": Counted("b", log, fails_at=3)}
    found = in_turns(teams, lambda _: 1, 4, lambda name, why: told.append((name, why)))
    assert found == {"a": [1.0] * 4}
    assert told == [("b", "it printed nothing")] and log.count("b") == 2


def test_a_process_computes_when_told_and_only_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("go 3\ngo 5\nend\ngo 7\n"))
    steps: list[int] = []
    take_turns(lambda count: steps.append(count) or count / 2)
    assert steps == [3, 5]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [[MARK, "ready"], [MARK, "took", "1.5"], [MARK, "took", "2.5"]]


@given(st.floats(1e-4, 1.0), st.floats(1e6, 1e11))
def test_the_floor_is_compute_and_what_the_link_needs(compute: float, rate: float) -> None:
    floor = hosts_steps.floor_of(compute, rate)
    bits = 8 * 4 * hosts_steps.PARAMETERS
    assert floor - compute == pytest.approx(bits / rate * 1514 / 1448, rel=1e-6, abs=1e-12)


def test_the_floor_counts_the_parameters_of_the_model() -> None:
    from benchmarks.step_worker import make_mlp

    assert sum(p.numel() for p in make_mlp().parameters()) == hosts_steps.PARAMETERS


def test_a_machine_alone_gets_its_share_of_the_batch() -> None:
    assert hosts_straggler.shares(288) == {"m1": 128, "m2": 128, "m3": 32}
    assert sum(hosts_straggler.QUOTAS.values()) <= 200


@pytest.mark.parametrize("strategy", hosts_codecs.STRATEGIES)
@pytest.mark.parametrize("codec", hosts_codecs.CODECS)
def test_every_cell_is_a_spec(strategy: str, codec: str) -> None:
    spec = hosts_codecs.Cell("1gbit", strategy, codec, 0.97).spec
    assert parse_spec(spec).text == spec


def test_the_table_says_where_a_codec_pays(tmp_path: Path) -> None:
    def row(codec: str, seconds: float | None) -> str:
        cell = hosts_codecs.Cell("1gbit", "async", codec, 0.97)
        return json.dumps(
            {**cell.key, "seconds": seconds, "accuracy": 0.9612, "trained_seconds": 90.0}
        )

    file = tmp_path / "results.jsonl"
    file.write_text("\n".join([row("none", 30.0), row("int8", 15.0), row("fp16", None)]))
    found = hosts_codecs.table(Results(file), "1gbit", 0.97)
    assert "| `async` | 30.0 | not reached (0.961 after 90 s) | 15.0 (2.0) |  |" in found
    assert "| `allreduce` |  |  |  |  |" in found
