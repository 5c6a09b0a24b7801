from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_support import Shell

PLUGINS = Path(__file__).parents[1] / "launch"


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DEBUG", raising=False)
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "80")
    # Workers of these scripts are spared the seconds that importing torch takes.
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("PYTHONPATH", str(PLUGINS), prepend=os.pathsep)
    monkeypatch.setenv("PHALANX_PLUGINS", "torch_free")
    return Shell(tmp_path, capsys)
