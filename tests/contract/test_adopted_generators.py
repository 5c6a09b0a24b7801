"""A loader with a generator of its own is evaluated on in the middle of a pass over it: what it
gives then, and in later passes, is what plain Python gets, in both views."""

from __future__ import annotations

from pathlib import Path

import pytest
from adopted_runs import execute
from devices import AWAY
from evaluated_inside import EVALUATED, OWN, written
from forked_workers import ForkedRun, run_forked
from on_hosts import HOSTS
from plain_compare import assert_same_state

pytestmark = pytest.mark.skipif(AWAY or HOSTS > 1, reason="workers are forks of this process")


def _run(script: Path, view: str) -> ForkedRun:
    folder = script.parent / "run"
    return run_forked(script, 2, folder, strategy="allreduce", view=view, check=12)


@pytest.mark.parametrize("view", ["parts", "whole"])
@pytest.mark.parametrize("leave", ["pass", "if step == 3: break"])
@pytest.mark.parametrize("loader", [OWN, "shuffle=True"])
@pytest.mark.parametrize("evaluated", EVALUATED)
def test_evaluated_inside_a_pass(
    tmp_path: Path, evaluated: str, loader: str, leave: str, view: str
) -> None:
    script = written(tmp_path, loader, evaluated, leave)
    wanted, found = execute(script), _run(script, view)
    assert not found.error, found.error
    assert "checked against one process" in found.said
    for result in found.results:
        assert_same_state(result["weights"], wanted["weights"], "weights")
        assert result["figures"] == pytest.approx(wanted["figures"], rel=1e-9)


def test_a_rest_that_depends_on_the_evaluation_is_refused_in_view_parts(tmp_path: Path) -> None:
    late = "sampler=RandomSampler(data, num_samples=44, generator=own)"
    script = written(tmp_path, late, "same generator", "pass")
    assert "run with --view whole" in _run(script, "parts").error
    (tmp_path / "run").rename(tmp_path / "first")
    wanted, found = execute(script), _run(script, "whole")
    assert not found.error, found.error
    for result in found.results:
        assert_same_state(result["weights"], wanted["weights"], "weights")
