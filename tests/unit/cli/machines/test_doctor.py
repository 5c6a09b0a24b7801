from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import Shell

from phalanx.cli.machines import doctor_checks as checks


def test_every_check_is_one_line_with_a_status(shell: Shell) -> None:
    answer = shell("doctor", "--json")

    assert answer.code == 0
    assert answer.json["ok"] is True
    found = answer.json["checks"]
    assert [c["name"] for c in found] == [
        "system", "python", "torch", "cores", "GPUs", "memory", "shared memory", "bfloat16",
        "run folder",
    ]  # fmt: skip
    assert {c["status"] for c in found} <= {"ok", "warn"}
    assert all(len(c["found"].splitlines()) == 1 for c in found)


def test_a_run_folder_that_cannot_be_written_fails_with_its_remedy(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shell.folder / "file").write_text("in the way")
    monkeypatch.setenv("PHALANX_RUNS", str(shell.folder / "file" / "runs"))
    monkeypatch.setattr(checks, "CHECKS", (checks.python, checks.run_folder))

    answer = shell("doctor")
    assert answer.code == 3
    assert answer.out.splitlines()[0].startswith("ok   python")
    assert answer.out.splitlines()[1].startswith("fail run folder")
    assert "PHALANX_RUNS" in answer.out.splitlines()[2]


def test_a_torch_that_does_not_import_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ASK_TORCH", "raise ImportError('libc10.so is missing')")
    found = checks.torch()

    assert found.status == "fail"
    assert found.found == "ImportError: libc10.so is missing"
    assert "pip install torch" in found.remedy


@pytest.mark.parametrize(
    ("flags", "status", "shown"),
    [
        ("flags : fpu avx512_bf16 amx_bf16 amx_tile", "ok", "amx_bf16, avx512_bf16"),
        ("Features : fp asimd bf16 i8mm", "ok", "bf16"),
        ("flags : fpu sse2 avx2", "warn", "no instructions"),
    ],
)
def test_the_processor_s_flags_for_bfloat16(
    tmp_path: Path, flags: str, status: str, shown: str
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\n{flags}\n")
    found = checks.bfloat16(file)

    assert found.status == status
    assert shown in found.found


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> checks.HealthCheck:
        raise RuntimeError("no such file")

    assert checks.examine(broken).status == "fail"
