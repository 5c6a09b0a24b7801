from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import Shell


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DEBUG", raising=False)
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "80")
    return Shell(tmp_path, capsys)
