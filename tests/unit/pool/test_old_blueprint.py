"""Blueprints that are nearly JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.document import with_commas

PRINTED = """{
  "connections": [
    {"IP": "192.0.2.1" "Username": "lab"
     "GPUs": 0 "Energy efficient": yes}
    {"IP": "192.0.2.2", "Username": "lab", "Password": "secret word"
     "GPUs": 1, "Energy efficient": no}
  ]
}
"""


def test_missing_commas_and_bare_words_are_read(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(PRINTED)
    (tmp_path / "old.json").chmod(0o600)
    pool = read_blueprint(tmp_path / "old.json")
    first, second = pool.machines
    assert (first.host, first.user, first.gpus, first.energy_efficient) == (
        "192.0.2.1", "lab", 0, True
    )  # fmt: skip
    assert (second.gpus, second.energy_efficient) == (1, False)
    assert second.inline_password is not None
    assert pool.warnings[0] == f"{tmp_path / 'old.json'}: 5 commas were missing"


def test_what_is_valid_stays_as_it_is() -> None:
    text = '{"connections": [{"IP": "192.0.2.1", "note": "no, \\"yes\\" {", "n": [1, 2]}]}'
    assert with_commas(text) == (text, 0)


def test_other_faults_are_said(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text('{"connections": [{"IP": "192.0.2.1" "Colour": "red"}]}')
    with pytest.raises(InputError, match="Colour"):
        read_blueprint(old)
