"""Blueprints that are nearly JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.old_blueprint import convert, repaired

PRINTED = """{
  "connections": [
    {"IP": "192.0.2.1" "Username": "lab"
     "GPUs": 0 "Energy efficient": yes}
    {"IP": "192.0.2.2", "Username": "lab", "Password": "secret word"
     "GPUs": 1, "Energy efficient": no}
  ]
}
"""


def test_missing_commas_and_bare_words_are_mended(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(PRINTED)
    found = convert(tmp_path / "old.json")
    new = tmp_path / "pool.yaml"
    new.write_text(found.text)
    first, second = read_blueprint(new).machines
    assert (first.host, first.user, first.gpus, first.energy_efficient) == (
        "192.0.2.1", "lab", 0, True
    )  # fmt: skip
    assert (second.gpus, second.energy_efficient) == (1, False)
    assert "secret" not in found.text
    assert second.password is not None
    assert found.mended == [
        "5 commas were missing",
        "2 words were without quotes (yes, no)",
        "passwords are not copied: phalanx asks for them",
    ]


def test_what_is_valid_stays_as_it_is() -> None:
    text = '{"connections": [{"IP": "192.0.2.1", "note": "no, \\"yes\\" {", "n": [1, 2]}]}'
    assert repaired(text) == (text, 0, 0)


def test_other_faults_are_said_of_the_file_itself(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text('{"connections": [{"IP": "192.0.2.1" "Colour": "red"}]}')
    with pytest.raises(InputError, match="Colour") as error:
        convert(old)
    assert str(old) in error.value.cause
    with pytest.raises(InputError, match="no blueprint"):
        convert(tmp_path / "absent.json")


def test_reading_the_printed_form_names_the_command_that_mends_it(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(PRINTED)
    with pytest.raises(InputError) as found:
        read_blueprint(tmp_path / "old.json")
    assert "broken JSON" in found.value.cause
    assert f"phalanx pool convert {tmp_path / 'old.json'}" in found.value.remedy
