"""The run's key: handed over as text or in a private file, never shown."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_key import RunKey, key_from


@given(st.binary(min_size=32, max_size=32))
def test_text_gives_the_same_key_again(secret: bytes) -> None:
    key = RunKey(secret)
    assert RunKey.from_text(key.text()) == key
    assert RunKey.from_text(f" {key.text().upper()}\n") == key


def test_every_run_has_its_own_key() -> None:
    assert RunKey.new() != RunKey.new()


def test_nothing_that_is_printed_shows_the_key() -> None:
    key = RunKey.new()
    shown = f"{key} {key!r} {[key]} {(key,)}"
    assert key.text() not in shown
    assert repr(key.secret()) not in shown
    with pytest.raises(TypeError):
        pickle.dumps(key)


@pytest.mark.parametrize(
    "text", ["", "ab", "g" * 64, "a" * 63, "a" * 65, "a b" * 21 + "a", "é" * 64]
)
def test_other_texts_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(InputError, match="64 hexadecimal digits") as caught:
        RunKey.from_text(text)
    assert not text or text not in str(caught.value)


def test_the_key_comes_from_the_environment() -> None:
    key = RunKey.new()
    assert key_from({}) is None
    assert key_from({"PHALANX_KEY": key.text()}) == key


def test_the_key_comes_from_a_private_file(tmp_path: Path) -> None:
    key = RunKey.new()
    file = tmp_path / "key"
    file.write_text(key.text() + "\n")
    file.chmod(0o600)
    assert key_from({"PHALANX_KEY_FILE": str(file)}) == key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text(RunKey.new().text())
    file.chmod(mode)
    with pytest.raises(InputError, match="other users can read or change") as caught:
        key_from({"PHALANX_KEY_FILE": str(file)})
    assert f"chmod 600 {file}" in caught.value.remedy


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path):
        with pytest.raises(InputError, match="is not a file"):
            key_from({"PHALANX_KEY_FILE": str(path)})
    with pytest.raises(InputError, match="cannot read"):
        key_from({"PHALANX_KEY_FILE": str(tmp_path / "missing")})
