"""``phalanx pool check --offline``: the table, the selections, and the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
