from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError, MachineError, ScriptError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.run.failure import culprit, explain, failures, is_clear
from phalanx.launch.worker.script_runner import PEER_LOST_CODE

CODES = st.dictionaries(st.integers(0, 9), st.sampled_from([0, 1, 2, -9, PEER_LOST_CODE]))


@given(CODES)
def test_the_culprit_failed_by_itself(codes: dict[int, int]) -> None:
    rank = culprit(codes)
    by_themselves = {r for r, c in codes.items() if c not in (0, PEER_LOST_CODE)}
    assert rank == min(by_themselves, default=None)
    assert set(failures(codes)) == {r for r, c in codes.items() if c}


def test_a_killed_worker_is_named_before_those_that_missed_its_machine() -> None:
    assert culprit({0: 3, 1: 3, 2: -9}) == 2
    assert culprit({0: 3, 1: PEER_LOST_CODE}) == 0
    assert is_clear({0: 3, 1: 3, 2: 1})
    assert not is_clear({0: 3, 1: PEER_LOST_CODE, 2: 0})  # its machine, or what ended there?


def test_words(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path).make()
    killed = explain(1, -9, paths)
    assert "worker 1 was killed by SIGKILL" in killed.cause and "memory" in killed.remedy
    assert "rank-1.log" in killed.cause
    assert "SIGSEGV" in explain(0, -11, paths).cause
    assert "signal 63" in explain(0, -63, paths).cause
    assert "stopped by a signal" in explain(0, 143, paths).cause
    plain = explain(0, 2, paths)
    assert isinstance(plain, ScriptError) and "code 2" in plain.cause
    paths.traceback_of(0).write_text("what\ndo this\n")
    assert isinstance(explain(0, 2, paths), InputError)
    assert "worker 0 failed: do this" in explain(0, 1, paths).cause
    paths.traceback_of(0).write_text("Traceback\n\nNameError: x\n\nIt is skipped.\nhint: Set it.\n")
    advised = explain(0, 1, paths)
    assert "worker 0 failed: NameError: x (log" in advised.cause
    assert advised.remedy == "Set it."


def test_an_error_of_several_lines_is_named_by_its_first(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.traceback_of(0).parent.mkdir(parents=True)
    told = "Traceback\n  File x\nRuntimeError: cannot load\nCheck the pages.\n"
    paths.traceback_of(0).write_text(told)
    assert "worker 0 failed: RuntimeError: cannot load (log" in explain(0, 1, paths).cause


def test_a_full_disk_is_named_when_the_worker_could_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = RunPaths(tmp_path).make()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=100))
    told = explain(0, 1, paths)
    assert isinstance(told, MachineError) and "worker 0 failed: the disk is full" in told.cause
    assert "phalanx resume" in told.remedy
    assert "SIGKILL" in explain(0, -9, paths).cause


def test_a_failure_of_the_machine_is_told_in_its_own_words(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path).make()
    paths.traceback_of(0).write_text("cannot write it\nfree some\n")
    told = explain(0, 3, paths)
    assert isinstance(told, MachineError)
    assert (told.cause, told.remedy) == ("cannot write it", "free some")
