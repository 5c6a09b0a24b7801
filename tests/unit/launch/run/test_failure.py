from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("code", "traceback", "kind", "cause", "remedy"),
    [
        (-9, "", ScriptError, r"worker 1 was killed by SIGKILL.*rank-1\.log", "memory"),
        (-11, "", ScriptError, "SIGSEGV", ""),
        (-63, "", ScriptError, "signal 63", ""),
        (143, "", ScriptError, "stopped by a signal", ""),
        (2, "", ScriptError, "code 2", ""),
        (2, "what\ndo this\n", InputError, "what", "do this"),
        (1, "what\ndo this\n", ScriptError, "worker 1 failed: do this", ""),
        (1, "Early.\nhint: Wait.\n", ScriptError, r"failed: Early. \(log", "Wait."),
        (
            1, "Traceback\n\nNameError: x\n\nIt is skipped.\nhint: Set it.\n", ScriptError,
            r"worker 1 failed: NameError: x \(log", "Set it.",
        ),
        (
            1, "Traceback\n  File x\nRuntimeError: cannot load\nCheck the pages.\n", ScriptError,
            r"worker 1 failed: RuntimeError: cannot load \(log", "",
        ),
        (3, "cannot write it\nfree some\n", MachineError, "^cannot write it$", "free some"),
    ],
)  # fmt: skip
def test_words(
    tmp_path: Path, code: int, traceback: str, kind: type, cause: str, remedy: str
) -> None:
    paths = RunPaths(tmp_path).make()
    if traceback:
        paths.traceback_of(1).write_text(traceback)
    told = explain(1, code, paths)
    assert isinstance(told, kind)
    assert re.search(cause, told.cause) and remedy in told.remedy


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
