"""``phalanx doctor``, and ``phalanx pool check --offline``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Shell
from typer.testing import CliRunner

from phalanx.cli.machines import doctor_checks as checks
from phalanx.cli.main import pool_app

POOL = """\
defaults: {user: ml}
machines:
  alpha: {host: 192.0.2.10, gpus: 1, watts: 250, price_per_hour: 0.9}
  beta:  {host: "[2001:db8::1]", port: 2222, cores: 4, energy_efficient: yes}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "pool.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def cells(output: str, name: str) -> list[str]:
    (line,) = (line for line in output.splitlines() if line.strip().startswith(name + " "))
    return line.split()


def test_table_and_selections(tmp_path: Path) -> None:
    result = CliRunner().invoke(pool_app, ["check", "--offline", str(write(tmp_path, POOL))])
    assert result.exit_code == 0, result.output
    out = result.stdout
    assert cells(out, "alpha") == ["alpha", "192.0.2.10", "?", "1", "no", "250", "0.90"]
    assert cells(out, "beta") == ["beta", "[2001:db8::1]:2222", "4", "0", "yes", "?", "?"]
    assert cells(out, "all") == ["all", "alpha,", "beta"]
    assert cells(out, "cpus") == ["cpus", "beta"]
    assert cells(out, "gpus") == ["gpus", "alpha"]
    assert cells(out, "energy") == ["energy", "beta"]
    assert cells(out, "fastest:1") == ["fastest:1", "alpha"]


def test_a_selection_that_takes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "machines: {a: {host: a.example}}")
    result = CliRunner().invoke(pool_app, ["check", "--offline", str(path)])
    assert cells(result.stdout, "gpus") == ["gpus", "no", "machine"]


def test_json_is_the_last_line_of_stdout(tmp_path: Path) -> None:
    path = write(tmp_path, POOL.replace("user: ml", "password: secret-word"))
    result = CliRunner().invoke(pool_app, ["check", "--offline", str(path), "--json"])
    assert len(result.stdout.splitlines()) == 1
    answer = json.loads(result.stdout)
    assert set(answer) == {"source", "machines", "selections", "warnings"}
    assert [m["name"] for m in answer["machines"]] == ["alpha", "beta"]
    assert answer["machines"][0]["password"] == "(hidden)"
    assert answer["machines"][1]["watts"] is None
    assert answer["selections"]["gpus"] == ["alpha"]
    assert "holds the password of alpha, beta" in answer["warnings"][0]
    assert "alpha" in result.stderr and "warning:" in result.stderr
    assert "secret-word" not in result.stdout + result.stderr


def test_eighty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    entries = "".join(f"  {'m' * 60}{i}: {{host: {'h' * 200}{i}}}\n" for i in range(3))
    result = CliRunner().invoke(
        pool_app, ["check", "--offline", str(write(tmp_path, "machines:\n" + entries))]
    )
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert result.stdout.count("h") >= 600


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
